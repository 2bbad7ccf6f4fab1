"""What is done with the traced program of one row before it is mapped over rows, in reading order.

An access calls `passes.rewritten` with GRADIENT, or FACTORS for ghost sums; `door` takes gradients by `hoist.gradient`.

    incomplete_beta  the incomplete beta function, one row at a time
    linear_algebra   LAPACK sees finite numbers of rows only; triangular systems as products with one inverse
    materialize      a row's numbers, computed once and stored before they are clipped
    passes           the passes, in the order in which they are applied
    hoist            gradients in which a value that no row enters is differentiated once
    parameters       scores of many responses by the few parameters of their distribution
"""
