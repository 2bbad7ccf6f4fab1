"""Pictures of predictive uncertainty, of what a private run learned and of what it cost; each returns matplotlib's Axes.

Needs matplotlib, `pip install "dpppl[plot]"`, when a function is called. Colours are Okabe and Ito's, which the colour-blind tell
apart, and shapes or hatches say the same. Pictures of predictions for public inputs, and of samples, cost nothing; a picture
of scores of private rows is a release that no report covers.
"""

from dpppl.contrib.plotting.posteriors import learned_share, mixing, posteriors_by_name, private_beside_prior
from dpppl.contrib.plotting.predictions import input_probability, predictive_band, survival_plot
from dpppl.contrib.plotting.privacy import attack_picture, budget_spent, plan_picture

__all__ = [
    "attack_picture", "budget_spent", "input_probability", "learned_share", "mixing", "plan_picture", "posteriors_by_name",
    "predictive_band", "private_beside_prior", "survival_plot",
]  # fmt: skip
