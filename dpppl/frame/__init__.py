"""Where a posterior is and how wide, for a share of a run's budget: chains and guides start there; in reading order.

`locate.locate` makes them in the session of the run, which charges each access before it, and returns what they found.

    metric        coordinates in which the posterior is nearly white, by site
    locate        the first accesses of a run, NoiseAware's and the histogram of norms: cost, programs, and what they find
    norms         the clipping norm of the steps, from what these find
    moved_guides  parameters of a guide that start at a frame and move in its metric
"""
