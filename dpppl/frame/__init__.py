"""Where a posterior is and how wide, for a share of a run's budget: chains and guides start there; in reading order.

`runs.prelude.measure_norms` calls `locate.Locator.metric` in the histogram's session, which charges each access before it.

    metric  coordinates in which the posterior is nearly white, by site
    locate  the accesses of NoiseAware as the first of a run: their cost, programs, and the metric that they give
    guides  parameters of a guide that start at a frame and move in its metric
"""
