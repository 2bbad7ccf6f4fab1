"""Whole runs on rows that are sharded over devices: the same samples, parameters, releases, charges and checkpoints."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from patches import same_key
from small_models import latent, seen

import dpppl

N = 203


def model(x, y):
    seen(y, dist.Bernoulli(logits=x @ latent("w", x.shape[1])))


def data():
    random = np.random.default_rng(0)
    x = random.standard_normal((N, 3)).astype(np.float32)
    return x, (random.random(N) < 0.5).astype(np.float32)


def mesh_of(count):
    return jax.make_mesh((count,), ("rows",), devices=jax.devices()[:count])


def samples(mesh, kernel=None, num_chains=1, **settings):
    kernel = dpppl.DPSGLD(model, clipping_norm=2.0, subsampling=dpppl.Poisson(0.2)) if kernel is None else kernel
    mcmc = dpppl.MCMC(
        kernel, num_warmup=5, num_samples=20, num_chains=num_chains, chain_method="parallel", target_epsilon=2.0,
        target_delta=1e-5, progress_bar=False, print_cost=False, mesh=mesh, **settings,
    )  # fmt: skip
    with same_key() as key:
        mcmc.run(key, *data())
    return mcmc.get_samples()["w"], mcmc.privacy_report()


def parameters(mesh):
    svi = dpppl.SVI(
        model, AutoNormal(model), subsampling=dpppl.Partition(4), target_epsilon=2.0, target_delta=1e-5, reserve=0.2,
        num_data=N, print_cost=False, mesh=mesh,
    )  # fmt: skip
    with same_key() as key:
        result = svi.run(key, 20, *data(), progress_bar=False)
    with same_key() as key:
        elbo = svi.estimate_elbo(key, result.params, *data(), bound=2.0)
    return [*map(np.asarray, result.params.values()), elbo], svi.privacy_report()


def counts(x, y):
    seen(y, dist.Poisson(jax.numpy.exp(x @ latent("w", x.shape[1]))))


def posterior(mesh, model=model, data=data):
    noise_aware = dpppl.NoiseAware(
        model, target_epsilon=2.0, target_delta=1e-5, num_samples=50, progress_bar=False, print_cost=False, mesh=mesh
    )
    with same_key() as key:
        noise_aware.run(key, *data())
    found = noise_aware.releases.values, noise_aware.get_samples(allow_unconverged=True)["w"]
    return found, noise_aware.privacy_report()


def equal(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


def check_reports(one, two):
    assert one.events == two.events and one.epsilon == two.epsilon
    assert "2 device(s); how many each holds, at most 102, is public, too." in str(two)


@pytest.mark.slow
@pytest.mark.parametrize("way", [samples, parameters])
def test_numbers_do_not_depend_on_the_number_of_devices(way):
    (one, first), (two, second) = (way(mesh_of(count)) for count in (1, 2))
    equal(one, two)
    check_reports(first, second)
    if way is samples:
        np.testing.assert_allclose(one, samples(None)[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_chains_share_the_devices_and_norms_are_found_on_them():
    kernel = lambda: dpppl.DPSGHMC(model)  # noqa: E731
    equal(samples(mesh_of(1), kernel(), 2)[0], samples(mesh_of(2), kernel(), 2)[0])


@pytest.mark.slow
def test_releases_and_posteriors_of_several_devices():
    (one, first), (two, second) = (posterior(mesh_of(count)) for count in (1, 2))
    equal(one[0][:3], two[0][:3])  # walks are arithmetic of XLA's, with its own options in tests; without, see EIGHT
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), one[0][3:5], two[0][3:5])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3), one, two)
    check_reports(first, second)


@pytest.mark.slow
def test_one_program_of_all_kinds_on_several_devices():
    """Drawn responses of 1,000 rows: histograms are equal; what comes after their bounds agrees as elsewhere."""
    many = lambda: tuple(np.resize(part, (1_000, *part.shape[1:])) for part in data())  # noqa: E731
    (one, first), (two, second) = (posterior(mesh_of(count), counts, many)[0] for count in (1, 2))
    equal(one[:2], two[:2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3), (one, first), (two, second))


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_devices():
    found = []
    for mesh in (None, mesh_of(1), mesh_of(2)):
        with same_key() as key:
            square = lambda x, y: (x[0] - y) ** 2  # noqa: E731
            score = dpppl.private_score(key, square, *data(), bounds=(0.0, 2.0), noise_multiplier=2.0, mesh=mesh)
            found.append(score.mean)
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_another_number_of_devices(tmp_path, dies_at_third_checkpoint):
    whole, _ = samples(mesh_of(1))
    path = tmp_path / "run"
    with dies_at_third_checkpoint():
        samples(mesh_of(1), checkpoint=path)
    resumed, report = samples(mesh_of(2), checkpoint=path)
    equal(whole, resumed)
    assert report.num_accesses == 25


EIGHT = """
import json, hashlib
import jax, numpy as np
import test_mesh
def told(tree):
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))).hexdigest()
for count in (1, 2, 8):
    mesh = test_mesh.mesh_of(count)
    print(json.dumps([told(way(mesh)[0]) for way in (test_mesh.samples, test_mesh.parameters, test_mesh.posterior)]))
"""


@pytest.mark.slow
def test_eight_devices_give_the_numbers_of_one():
    flags = "--xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, "-c", EIGHT],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 3, run.stderr[-2000:]
    assert lines[0] == lines[1] == lines[2]
