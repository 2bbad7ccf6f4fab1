"""The likelihood that a private run leaves, as an object that needs neither the rows nor the model, in reading order.

A run's posterior is its prior times a likelihood of the latents given the releases. That likelihood is a mixture of normal laws,
one for each draw of the curvature. Anybody may multiply it by another prior, or by the likelihoods of other owners.

    supports    supports of sites, in words that a file holds
    records     the likelihood of one run: its arrays, its budget, and the model that it is about
    files       its file, which is checked before it is read
    priors      posteriors under other priors
    likelihood  the object that users have, and the product of several
"""
