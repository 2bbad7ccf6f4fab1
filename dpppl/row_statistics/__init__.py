"""Statistics that a row releases for `dpppl.NoiseAware`: its score and its curvature, in reading order.

Letters: d coordinates z are whitened to u, in k blocks of b; psi is a row's clipped, centred score, A its curvature; w and v are
the weights of a row whose A is longer than the bound, in curvatures and in gradients. A norm bounds scores, a bound curvatures.

    matrices      roots, eigenvalues and isometric coordinates of symmetric matrices
    basis         the whitened coordinates u; of wide models in blocks
    coordinates   the sites that the likelihood is measured in, as one vector, and their prior
    walk          gradients on the way to the posterior mean given those so far
    accesses      kinds of accesses, what each releases, and its arguments
    plan          the accesses of a run, and the share of the cost of each
    weights       survey weights
    statistics    what an access asks of a row: score, curvature, bins, sizes, sides
    shared_law    the same where all rows have one law, from one table
    fit           how well a row fits, and what the sums over rows say of it
    joint         all kinds of accesses as one program
    releases      accesses as programs, proved and charged; all that a run has released
"""
