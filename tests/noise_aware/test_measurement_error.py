"""A covariate with a known standard error, as docs/measurement-error.md writes it: summed out by nodes."""

import jax.numpy as jnp
import numpy as np
import pytest
from pages import DOCS, cells
from scipy import integrate, special, stats

from dpppl.model.split import split_model

BLOCKS = cells((DOCS / "measurement-error.md").read_text())


def page(number):
    """The names that the page's first blocks define, without the run."""
    found = {}
    for block in BLOCKS[:number]:
        exec(block.split("private = ")[0], found)
    return found


@pytest.mark.parametrize("slope", [0.5, 2.0, -3.0])
def test_nodes_integrate_over_the_true_value(slope):
    """The row's log likelihood is that of quadrature over the latent, to 1e-3 for slopes of up to 3 prior sds."""
    model, rows = (
        page(2)["model"],
        (np.array([0.7, 0.2], np.float32), np.array([1.1, -0.4], np.float32), np.array([1.0, 0.0], np.float32)),
    )
    split = split_model(model, rows, {})
    z = {"mean": 0.2, "spread": np.log(0.6), "level": -0.3, "slope": slope}
    z = {name: jnp.float32(value) for name, value in z.items()}
    for error, measured, y in zip(*rows):

        def density(value, error=error, measured=measured, y=y):
            chance = special.expit(-0.3 + slope * value)
            law = stats.norm.pdf(value, 0.2, 0.6) * stats.norm.pdf(measured, value, error)
            return law * (chance if y else 1 - chance)

        expected = np.log(integrate.quad(density, -6, 6)[0])
        row = {"error": error, "measured": measured, "y": y}
        assert float(split.log_likelihood(z, row, {})) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_the_private_slope_agrees_with_nuts_on_latents(capsys):
    """Within 4 sds of both together, while the slope that ignores the error is more than 5 sds off."""
    found = {}
    for block in BLOCKS:
        exec(block, found)
    private, nuts, ignored = (samples["slope"] for samples in found["found"].values())
    assert capsys.readouterr().out.count("read") and abs(private.mean() - nuts.mean()) < 4 * np.hypot(
        private.std(), nuts.std()
    )
    assert 0.8 < private.std() / nuts.std() < 2.0 and abs(ignored.mean() - 1.2) > 5 * ignored.std()
