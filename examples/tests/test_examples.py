"""The examples run, at small size, and say what they should. (Others are tested beside what they are about.)"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

import dpppl
from dpppl.svi.binding import bind_objective
from examples import bayes_by_backprop, demo
from examples.papers import bayesian_privacy
from models.logistic_regression import gaussian


def numbers_after(word, text):
    return [float(number) for number in re.findall(rf"{word} ([0-9.]+)", text)]


@pytest.mark.slow
def test_the_demo_shows_three_methods_compared_with_nuts(capsys, tmp_path):
    """A table and a picture; means that are somewhere else and other widths would show."""
    picture = tmp_path / "picture.png"
    demo.main(["--output", str(picture)])
    out = capsys.readouterr().out
    lines = re.findall(r"^(\w+)((?: +-?[0-9.]+){8})$", out, re.MULTILINE)
    assert [name for name, _ in lines] == [*demo.PUBLIC_LARGEST, "intercept"]
    numbers = {name: np.array(cells.split(), float).reshape(4, 2) for name, cells in lines}
    for name, (exact, *private) in numbers.items():
        for mean, sd in private:
            assert abs(mean - exact[0]) < 5.0 * exact[1] and 0.5 * exact[1] < sd < 2.0 * exact[1], name
    assert len(re.findall(r"^(?:NoiseAware|MCMC.*|SVI.*): read", out, re.MULTILINE)) == 3
    assert str(picture) in out and picture.read_bytes()[1:4] == b"PNG"


@pytest.mark.slow
def test_bayes_by_backprop_and_the_algorithm_written_out_predict_alike(capsys):
    bayes_by_backprop.main(["--digits", "--epsilon", "8", "--num-epochs", "10", "--learning-rate", "1e-3"])
    out = capsys.readouterr().out
    accuracies = numbers_after("accuracy", out)
    assert len(accuracies) == 2 and min(accuracies) > 0.7 and abs(accuracies[0] - accuracies[1]) < 0.08
    assert "exact Gaussian" in out  # one event an epoch


def test_a_step_is_the_note_line_by_line():
    """The same draw, batch and noise give the same directions of mu and rho; without the entropy's term they do not."""
    rng = np.random.default_rng(0)
    x = 2.0 * rng.standard_normal((30, 4)).astype(np.float32)
    y = (rng.random(30) < 0.5).astype(np.float32)
    noise, rate, norm = 0.3 * rng.standard_normal(5).astype(np.float32), 0.25, 1.0
    guide = AutoDiagonalNormal(gaussian)
    svi = dpppl.SVI(gaussian, guide, optax.sgd(0.1), clipping_norm=norm, subsampling=dpppl.Partition(4),
                    noise_multiplier=1.0, loss=Trace_ELBO())  # fmt: skip
    objective, start = bind_objective(svi, jax.random.key(1), (x, y), {})
    phi = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype), start)
    order = np.concatenate([np.ravel(v) for v in objective.guide._unpack_latent(np.arange(5)).values()])
    names = list(objective.guide._unpack_latent(np.arange(5)))
    columns = np.concatenate([{"weights": np.arange(4), "intercept": [4]}[name] for name in names])
    place = np.empty(5, int)  # of a column of the design in the guide's vector
    place[columns] = order
    seen = {}

    def access(log_likelihood, _, z, public):
        """The clipped sum by hand, with the noise of this test."""
        seen["w"] = jnp.concatenate([z["weights"], z["intercept"][None]])
        gradients = jax.vmap(jax.grad(log_likelihood), (None, 0, None))(z, {"x": x, "y": y}, public)
        flat = jnp.concatenate([gradients["weights"], gradients["intercept"][:, None]], axis=1)
        total = (flat / jnp.maximum(1.0, jnp.linalg.norm(flat, axis=1, keepdims=True) / norm)).sum(0) + noise
        return {"weights": total[:4], "intercept": total[4]}

    asked = objective.aligned(phi, jax.random.key(2), {})
    found = asked.direction(access(*asked[:4]), rate)
    mu, rho = phi["auto_loc"][place], phi["auto_scale"][place]
    eps = (seen["w"] - mu) / jax.nn.softplus(rho)
    design = np.c_[x, np.ones(30, np.float32)]
    settings = dict(clipping_norm=norm, rate=rate)
    d_mu, d_rho = bayes_by_backprop.directions(mu, rho, eps, design, y, noise, **settings)
    np.testing.assert_allclose(found["auto_loc"][place], d_mu, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["auto_scale"][place], d_rho, rtol=1e-4, atol=1e-4)
    assert not np.allclose(d_rho, d_rho - jax.nn.sigmoid(rho) / jax.nn.softplus(rho), rtol=1e-2)


@pytest.mark.slow
def test_bayesian_privacy_writes_its_figures(tmp_path):
    """Figure 5: where all rows are as long as the clipping norm, the best order gives the moments accountant's epsilon."""
    bayesian_privacy.main(["--only", "figure_5", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "bayesian_privacy.json").read_text())["figure_5"]
    event = dpppl.accounting.GaussianEvent(noise_multipliers=((1.0, 10_000),), sampling_rate=64 / 60_000)
    orders = np.array(found["orders"])
    expected = np.min(dpppl.accounting.rdp(event, orders + 1.0) + np.log(1e5) / orders)
    assert min(float(value) for value in found["1"]) == pytest.approx(expected, rel=0.01)


def test_gradients_of_other_rows_are_found_to_be_farther_apart():
    """Student's and Levene's tests on distances of pairs: rows of one distribution pass at 1e-3, rows half as long again do not."""
    rng = np.random.default_rng(0)
    mean = {"weights": np.array([1.0, -1.0, 0.5]), "intercept": 0.2}
    x = rng.standard_normal((8_000, 3))
    y = (rng.random(8_000) < 1.0 / (1.0 + np.exp(-x @ mean["weights"] - 0.2))).astype(float)
    train, test, longer = (
        bayesian_privacy.pairwise_distances(mean, scale * x[part], y[part])
        for scale, part in ((1.0, slice(0, 4_000)), (1.0, slice(4_000, None)), (1.5, slice(4_000, None)))
    )
    assert len(train) == 1_000 and min(bayesian_privacy.alike(train, test).values()) > 1e-3
    assert max(bayesian_privacy.alike(train, longer).values()) < 1e-3
    found = bayesian_privacy.gradients_at(np.array([1.0]), 0.0, np.array([[-1.0], [2.0]]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(found, [[0.2689414, -0.2689414], [2 * 0.1192029, 0.1192029]], atol=1e-6)
