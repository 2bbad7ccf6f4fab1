"""Statistics that a row releases for `dpppl.NoiseAware`: its score and its curvature, in reading order.

Letters: d coordinates z are whitened to u, in k blocks of b; psi is a row's clipped, centred score, A its curvature. A
norm bounds scores, a bound curvatures: where A is longer, w shortens the row's curvature. Both also hold the
survey weight of the row.

    matrices        roots, eigenvalues and isometric coordinates of symmetric matrices
    basis           the whitened coordinates u; of wide models in blocks
    coordinates     the sites that the likelihood is measured in, as one vector, and their prior
    accesses        kinds of accesses, what each releases, and its arguments
    plan            the accesses of a run, and the share of the cost of each
    weights         survey weights
    response_ranks  the numbers that the access "scalars" releases: how well a row fits; what their sums over rows say
    statistics      what an access asks of a row: a look at its score and curvature, bins of their lengths, scalars
    shared_law      the same where all rows have one law, from one table
    releases        accesses as programs, proved and charged; all that a run has released
"""
