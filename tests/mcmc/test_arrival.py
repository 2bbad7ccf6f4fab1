"""What a chain's verdict says of its mean: whether the chain has arrived, from positions and the noise of its steps."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import dpppl
from dpppl.mcmc.measured import Arrival, MeasuredChains, Noise, excess_of, noise_of
from dpppl.mcmc.verdict import MEAN, MOVING, READ, SHORT, UNSTABLE, reading

STEP = 0.01


def paths(rng, friction, curvature, *, draws, chains=1, size=1, thinning=1, warmup=0, start=0.0):
    """(midpoints, positions, noise) of chains with a normal posterior of this curvature around 0, or a flat one, as those of
    DPSGLD (friction 1) and DPSGHMC move."""
    std = (2.0 * friction * STEP) ** 0.5
    z, v, found = np.full((chains, size), start), np.zeros((chains, size)), []
    for step in range(warmup + draws * thinning):
        v = (1.0 - friction) * v - STEP * curvature * z + std * rng.standard_normal(z.shape)
        z = z + v
        if step >= warmup and (step - warmup) % thinning == thinning - 1:
            found.append((z - 0.5 * v, z))
    middle, positions = (np.stack(part, axis=1) for part in zip(*found))
    way = (std / friction) ** 2
    moves, ways = (
        np.full((chains, draws), way * friction / (2.0 - friction)),
        np.full((chains, draws - 1), way * thinning),
    )
    noise = Noise(moves=moves, ways=ways, friction=friction, thinning=thinning)
    return {"z": middle}, {"z": positions}, noise


def words(middle, positions, noise):
    """Verdicts on each element, each as that of a run of its own; priors are a hundred times as wide as posteriors."""
    measured = MeasuredChains(step_size=STEP, excess=excess_of(middle, positions, noise))
    prior, found = {"z": np.random.default_rng(0).normal(0.0, 300.0, (1_000, 1))}, []
    for element in range(middle["z"].shape[2]):
        run = [{"z": values["z"][..., [element]]} for values in (middle, positions)]
        found += list(reading(run[0], measured, Arrival.of(*run, noise), prior).words["z"])
    return np.array(found, dtype=object)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "friction, thinning, chains, draws", [(1.0, 1, 1, 20), (1.0, 5, 4, 100), (0.1, 1, 4, 20), (0.1, 5, 1, 60)]
)
def test_where_nothing_pulls_movement_and_instability_are_reported_as_rarely_as_stated(
    friction, thinning, chains, draws
):
    """1 % of 1,000 runs of three elements: 22 or more have a chance of 5e-4. Of 3,000 elements 1 % are taken for held: 4.4 sds of
    their number are 24. If the noise's variance were thought a fifth smaller, 22 runs or more would move in each case; if 30 %
    larger, 71 elements or more would be held."""
    rng, found = np.random.default_rng(0), {MOVING: 0, UNSTABLE: 0}
    middle, positions, noise = paths(rng, friction, 0.0, draws=draws, chains=chains, size=3_000, thinning=thinning)
    alone = [[{"z": values["z"][..., [i]]} for values in (middle, positions)] for i in range(3_000)]
    assert 6 < sum(Arrival.of(*run, noise).held["z"][0] for run in alone) < 54
    for first in range(0, 3_000, 3):
        run = [{"z": values["z"][:, :, first : first + 3]} for values in (middle, positions)]
        found[MOVING] += bool(np.any(Arrival.of(*run, noise).moving["z"]))
        found[UNSTABLE] += excess_of(*run, noise)["z"] > 0.5
    assert found[MOVING] < 22 and found[UNSTABLE] < 22


@pytest.mark.parametrize("friction", [1.0, 0.1])
def test_the_way_to_a_posterior_is_seen(friction):
    """100 chains each. Ten posterior sds away from it, over three relaxation times of DPSGLD, a chain is always seen to move;
    what arrived long ago never is (at 1 % in all 100 runs' false alarm is below 1 %). At rest, over fifty times, its mean may be
    read and is within a posterior sd; over a tenth of one nothing is known."""
    rng, curvature = np.random.default_rng(1), {1.0: 1.0, 0.1: 0.1}[friction]
    sd, time = curvature**-0.5, STEP / friction * curvature

    def of(times, **settings):
        return paths(
            rng, friction, curvature, draws=100, thinning=max(1, round(times / time / 100)), size=100, **settings
        )

    assert np.mean(words(*of(3, start=10 * sd)) == MOVING) == 1.0
    settled = of(50, warmup=round(10 / time))
    said = words(*settled)
    assert np.mean(np.isin(said, (MEAN, READ))) > 0.85 and MOVING not in said
    assert np.max(np.abs(np.mean(settled[0]["z"], axis=(0, 1)))[np.isin(said, (MEAN, READ))]) < sd
    assert np.mean(words(*of(1.0, start=0.0)) == SHORT) > 0.95


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("friction, stiffness", [(1.0, 1.9), (0.1, 3.7)])
def test_steps_that_are_too_long_are_seen_in_twenty_draws(friction, stiffness):
    """Just below the limit of stability, 2 and 2 (2 - friction); a third of it is no alarm."""
    rng = np.random.default_rng(2)

    def unstable(share):
        run = paths(rng, friction, share * stiffness / STEP, draws=20, warmup=100, size=20)
        return UNSTABLE in words(*run)

    assert all(unstable(1.0) for _ in range(20))
    assert not any(unstable(0.3) for _ in range(20))


def free(y):
    z = numpyro.sample("z", dist.ImproperUniform(constraints.real, (), (30,)))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.sum(z), 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [dpppl.DPSGLD, dpppl.DPSGHMC, dpppl.DPSGNHT], ids=lambda kernel: kernel.__name__)
def test_the_noise_is_that_of_the_chain(kernel):
    """Rows that are not finite add 0, so nothing pulls. 240 ways of 60 draws: their variance is known to 1.2 %, moves of kernels
    with momentum to 4 %; the thermostat keeps moves as they are, and its friction to some percent."""
    start = {"z": np.zeros(30, np.float32)}
    kernel = kernel(free, clipping_norm=1.0, init_strategy=start, preconditioner={"z": np.float32(4.0)})
    mcmc = dpppl.MCMC(
        kernel, num_warmup=40, num_samples=120, num_chains=8, thinning=2, target_epsilon=1.0, target_delta=1e-5,
        chain_method="vectorized", progress_bar=False, print_cost=False,
    )  # fmt: skip
    mcmc.run(dpppl.secret_key(), np.full(50, np.nan, np.float32), extra_fields=("z",))
    positions = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["z"]["z"], np.float64) / 2.0
    middle = np.asarray(mcmc.get_samples(group_by_chain=True)["z"], np.float64) / 2.0
    bound = mcmc.calibrated_kernel().bind((np.full(50, np.nan, np.float32),), {})
    noise = noise_of(bound, 40, 60, 2, np.full(8, np.inf))
    moves = 2.0 * (positions - middle)
    ways = np.diff(positions + (1.0 - noise.friction) / noise.friction * moves, axis=1)
    assert np.mean(moves**2 / noise.moves[:, :, None]) == pytest.approx(1.0, abs=0.15)
    assert np.mean(ways**2 / noise.ways[:, :, None]) == pytest.approx(
        1.0, abs=0.15 if kernel.friction_at(1.0) < 1 else 0.05
    )
    assert set(mcmc.verdict.by_site["z"]) == {SHORT}


def mean_of(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


@pytest.mark.slow
def test_a_run_says_that_its_mean_has_not_arrived_and_how_to_steady_it(capsys):
    """At epsilon .05 a chain goes a tenth of its way: ten sds of its noise, and more than ten of its own sds from the posterior."""
    y = (3.0 + np.random.default_rng(0).standard_normal(1_000)).astype(np.float32)
    settings = {"target_delta": 1e-5, "progress_bar": False, "print_cost": False}
    far = dpppl.MCMC(
        dpppl.DPSGLD(mean_of, clipping_norm=1.0), num_warmup=20, num_samples=60, target_epsilon=0.05, **settings
    )
    far.run(dpppl.secret_key(), y)
    samples = far.get_samples()["mu"]
    assert abs(samples.mean() - 3.0) > 10.0 * samples.std()
    assert far.verdict.by_site["mu"] == MOVING and "had not arrived in mu" in str(far.privacy_report())
    few = dpppl.MCMC(
        dpppl.DPSGLD(mean_of, clipping_norm=5.0), num_warmup=20, num_samples=20, target_epsilon=40.0, **settings
    )
    with pytest.warns(UserWarning, match="too long for mu: raise num_samples"):
        few.run(dpppl.secret_key(), y)
    few.print_summary()
    printed = capsys.readouterr().out
    assert (
        "do not read: unstable: 1 of 1" in printed
        and "raise num_samples" in printed
        and "larger epsilon" not in printed
    )
