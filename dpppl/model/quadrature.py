"""Values at which a continuous latent of a row, such as a missing covariate, is tried, in place of an integral."""

import numpy as np

NUM_NODES = 16
# The trapezoidal rule under a normal density resolves likelihoods twice as sharp as the Gauss-Hermite rule of as many nodes,
# whose outer nodes have almost no weight.
_REACH = 4.5
NODES = np.linspace(-_REACH, _REACH, NUM_NODES)
LOG_WEIGHTS = -(NODES**2) / 2 - np.log(np.sum(np.exp(-(NODES**2) / 2)))
