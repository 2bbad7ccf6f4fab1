"""`dpppl.NoiseAware`, in reading order. A run (`runner.NoiseAware.run`) in outline; all accesses are to all rows, charged before.
`recipe.run_recipe` asks for the releases; `conclusion.drawn_posterior` and `conclusion.judged` make draws and a verdict of them:

    for each look, in the order of the plan:                                                                (row_statistics.plan)
        before the first late look: ask how well rows fit, which says what clipping may harm     (row_statistics.response_ranks)
        where the plan says so: ask for histograms of scores' and curvatures' lengths; from these, bounds   (bounds)
        ask for the sum of scores and the curvature at the posterior mean given all looks so far            (recipe, curvature)
        if it is early: choose coordinates u in which the posterior is nearly white                         (sketch, basis)
    make a surrogate of the late looks, and ask how well rows fit where they end                            (surrogate)
    draw from the exact prior times a normal likelihood of the mean gradient                                (mixture, posterior)
    say whether the draws may be read                                                                       (verdict)

Letters, with those of `dpppl.row_statistics`, which holds what a row releases: m0 the prior mean; H the sum of curvatures, J the
variance of scores; mu the run's privacy parameter, and `scale` is 1 / mu.

What is made of it: a Gaussian surrogate of the likelihood, whose noise is known.
    eigen_draws   a curvature's eigenvalues and eigenvectors, given its noisy release
    curvature     curvatures as released, and draws of them
    sketch        off-block entries of wide models
    surrogate     the surrogate, and posteriors under normal priors
    bounds        bounds of a row, from histograms
    line          the line that scores of looks lie around, and its slope
    recipe        from releases to a surrogate, look by look
The end: draws, and whether they may be read.
    mixture       the posterior in closed form
    posterior     draws from it, by weights or NUTS
    measured      numbers on a run
    verdict       findings on them
    conclusion    from the releases to samples, verdict, summary and Bayes factors
    publishing    from the posterior to the likelihood that a run publishes
The calls of a user.
    settings      arguments, checked; budget and report
    binding       arguments -> coordinates, responses and rows
    forecast      widths of intervals before a run, on made-up rows
    runner        NumPyro's calls
"""
