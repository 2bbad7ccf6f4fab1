"""`dpppl.NoiseAware`, in reading order.

A run (`recipe.run_recipe`), in outline; each `ask` is a charged access to all rows:

    for each stage:
        choose coordinates u in which the posterior is nearly white, from what the stage before released   (basis)
        where the plan says so: ask for histograms of scores' and curvatures' lengths; from these, bounds   (bounds)
        ask for the curvature and the variance of scores                                                  (curvature)
        40 times: ask for a gradient, and move to the posterior mean given all releases of the stage       (releases, surrogate)
    ask for the curvature where the last stage arrived, for sizes, sides and scalars                       (sides, fit)
    draw from the exact prior times a normal likelihood of the mean gradient                               (mixture, posterior)
    say whether the draws may be read                                                                      (verdict)

Letters: d coordinates z, prior mean m0; u whitened coordinates in k blocks of b; psi a row's clipped, centred score, A its
curvature, w and v the weights of a row whose A is longer than the bound, in curvatures and in gradients; H the sum of curvatures,
J the variance of scores; mu the run's privacy parameter, and `scale` is 1 / mu. A norm bounds scores, a bound curvatures.

What a row releases: its score and its curvature, in coordinates in which the posterior is nearly white.
    plan          the accesses of a run, what each needs, and its share of the cost
    coordinates   the sites that the likelihood is measured in, as one vector, and their prior
    matrices      roots, eigenvalues and isometric coordinates of symmetric matrices
    basis         the whitened coordinates u; of wide models in blocks
    weights       survey weights
    statistics    what an access asks of a row: score, curvature, bins, sizes, sides
    shared_law    the same where all rows have one law, from one table
    fit           how well a row fits, and what the sums over rows say of it
    joint         all kinds of accesses as one program
    releases      accesses as programs, proved and charged; all that a run has released

What is made of it: a Gaussian surrogate of the likelihood, whose noise is known.
    eigen_draws   a curvature's eigenvalues and eigenvectors, given its noisy release
    curvature     curvatures as released, and draws of them
    sketch        entries beside the blocks of wide models
    surrogate     the surrogate, and posteriors under normal priors
    bounds        bounds of a row, from histograms
    sides         widths on either side of the mean
    recipe        from releases to a surrogate, stage by stage

The end: draws, and whether they may be read.
    mixture       the posterior in closed form
    posterior     draws from it, by weights or NUTS
    verdict       numbers on a run, and findings on them
    conclusion    from the releases to samples, verdict, summary and Bayes factors

The calls of a user.
    settings      arguments, checked; budget and report
    binding       arguments -> coordinates, responses and rows
    runner        NumPyro's calls
"""
