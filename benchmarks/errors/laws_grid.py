"""Every law of NumPyro's, in every variant and method: does it run to samples, or is it refused before anything is charged?

`python benchmarks/errors/laws_grid.py` runs laws x variants x methods and prints counts: ran, refused before a charge, raw errors, and charged
without samples; the last two must be 0. Results are kept in `--file`, one line a case: a second call runs what is missing alone. Each
process takes a few laws, since one process runs out of memory maps after some hundreds of compiled programs. Names of laws run
these alone; `--show` prints each message, `--again` runs what failed once more. `--trace` ends each case where its programs would be
compiled, with everything that a law can change done: ten times as fast; "ran" are then those that came so far. `--sample 60` runs so many
cases, drawn so that each variant and method has its turn.
"""

import argparse
import contextlib
import io
import itertools
import json
import random
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.autoguide import AutoNormal

import dpppl
from dpppl.runs import placing

N, TRIALS = 24, 6
E = jnp.exp
TWO = np.float32([0.5, -0.5])
EYE = np.eye(2, dtype=np.float32)
_MIX = dist.CategoricalProbs(np.float32([0.4, 0.6]))

ON_REALS = {
    "AsymmetricLaplace": lambda a, k: dist.AsymmetricLaplace(a, k, 1.5),
    "AsymmetricLaplaceQuantile": lambda a, k: dist.AsymmetricLaplaceQuantile(a, k, 0.3),
    "Cauchy": dist.Cauchy,
    "Gumbel": dist.Gumbel,
    "Laplace": dist.Laplace,
    "Logistic": dist.Logistic,
    "Normal": dist.Normal,
    "SoftLaplace": dist.SoftLaplace,
    "StudentT": lambda a, k: dist.StudentT(4.0 * k, a, 1.0),
    "mixture of normal laws": lambda a, k: dist.MixtureSameFamily(
        _MIX, dist.Normal(a[..., None] + TWO, jnp.asarray(k)[..., None])
    ),
    "mixture of two laws": lambda a, k: dist.MixtureGeneral(_MIX, [dist.Normal(a, k), dist.Laplace(a, k)]),
    "affine Normal": lambda a, k: dist.TransformedDistribution(
        dist.Normal(a, k), dist.transforms.AffineTransform(1.0, 2.0)
    ),
    "Delta": lambda a, k: dist.Delta(a, k),
}
TIMES = {
    "Chi2": lambda a, k: dist.Chi2(k * E(a) + 1.0),
    "Dagum": lambda a, k: dist.Dagum(2.0 * k, 2.0, E(a)),
    "Exponential": lambda a, k: dist.Exponential(k * E(a)),
    "Gamma": lambda a, k: dist.Gamma(2.0 * k, E(a)),
    "Gompertz": lambda a, k: dist.Gompertz(E(a), k),
    "HalfCauchy": lambda a, k: dist.HalfCauchy(k * E(a)),
    "HalfNormal": lambda a, k: dist.HalfNormal(k * E(a)),
    "InverseGamma": lambda a, k: dist.InverseGamma(3.0 * k, E(a)),
    "LogNormal": dist.LogNormal,
    "Weibull": lambda a, k: dist.Weibull(E(a), 2.0 * k),
    "folded Normal": lambda a, k: dist.FoldedDistribution(dist.Normal(a, k)),
}
BOUNDED = {
    "Beta": lambda a, k: dist.Beta(2.0 * E(a), 2.0 * k),
    "BetaProportion": lambda a, k: dist.BetaProportion(jax.nn.sigmoid(a), 5.0 * k),
    "DoublyTruncatedPowerLaw": lambda a, k: dist.DoublyTruncatedPowerLaw(a, 1.0 * k, 3.0),
    "Kumaraswamy": lambda a, k: dist.Kumaraswamy(2.0 * E(a), 2.0 * k),
    "LeftTruncatedGamma": lambda a, k: dist.LeftTruncatedGamma(dist.Gamma(2.0 * k, E(a)), low=0.5),
    "Levy": lambda a, k: dist.Levy(0.0, k * E(a)),
    "LogUniform": lambda a, k: dist.LogUniform(0.5 * E(-(a**2)), 4.0 * k),
    "LowerTruncatedPowerLaw": lambda a, k: dist.LowerTruncatedPowerLaw(-2.0 - E(a), 1.0 * k),
    "Pareto": lambda a, k: dist.Pareto(1.0 * k, 2.0 * E(a)),
    "RelaxedBernoulli": lambda a, k: dist.RelaxedBernoulliLogits(1.0 * k, a),
    "RightTruncatedGamma": lambda a, k: dist.RightTruncatedGamma(dist.Gamma(2.0 * k, E(a)), high=3.0),
    "TruncatedPolyaGamma": lambda a, k: dist.TruncatedPolyaGamma(),
    "TwoSidedTruncatedGamma": lambda a, k: dist.TwoSidedTruncatedGamma(dist.Gamma(2.0 * k, E(a)), low=0.2, high=4.0),
    "Uniform": lambda a, k: dist.Uniform(-E(a) - 3.0, 3.0 * k),
    "VonMises": dist.VonMises,
}  # fmt: skip
COUNTS = {
    "Bernoulli": lambda a, k: dist.Bernoulli(logits=a),
    "BernoulliProbs": lambda a, k: dist.Bernoulli(probs=jax.nn.sigmoid(a)),
    "BetaBinomial": lambda a, k: dist.BetaBinomial(2.0 * E(a), 2.0, TRIALS * k),
    "BetaNegativeBinomial": lambda a, k: dist.BetaNegativeBinomial(2.0 * E(a), 3.0, 2.0 * k),
    "Binomial": lambda a, k: dist.Binomial(TRIALS * k, logits=a),
    "BinomialProbs": lambda a, k: dist.Binomial(TRIALS * k, probs=jax.nn.sigmoid(a)),
    "Categorical": lambda a, k: dist.Categorical(logits=a[..., None] * TWO),
    "CategoricalProbs": lambda a, k: dist.Categorical(probs=jax.nn.softmax(a[..., None] * TWO)),
    "DiscreteUniform": lambda a, k: dist.DiscreteUniform(0, TRIALS),
    "GammaPoisson": lambda a, k: dist.GammaPoisson(2.0 * k, E(a)),
    "Geometric": lambda a, k: dist.Geometric(logits=a),
    "GeometricProbs": lambda a, k: dist.Geometric(probs=jax.nn.sigmoid(a)),
    "HurdlePoisson": lambda a, k: dist.HurdlePoisson(jax.nn.sigmoid(a), 2.0 * k),
    "NegativeBinomial2": lambda a, k: dist.NegativeBinomial2(E(a), 3.0 * k),
    "NegativeBinomialLogits": lambda a, k: dist.NegativeBinomialLogits(3.0 * k, a),
    "NegativeBinomialProbs": lambda a, k: dist.NegativeBinomialProbs(3.0 * k, jax.nn.sigmoid(a)),
    "OrderedLogistic": lambda a, k: dist.OrderedLogistic(a, np.float32([-1.0, 1.0])),
    "Poisson": lambda a, k: dist.Poisson(k * E(a)),
    "ZeroInflatedNegativeBinomial2": lambda a, k: dist.ZeroInflatedNegativeBinomial2(E(a), 3.0 * k, gate=0.3),
    "ZeroInflatedPoisson": lambda a, k: dist.ZeroInflatedPoisson(0.3, k * E(a)),
    "ZeroInflatedProbs": lambda a, k: dist.ZeroInflatedDistribution(dist.Binomial(TRIALS * k, logits=a), gate=0.3),
    "ZeroInflatedLogits": lambda a, k: dist.ZeroInflatedDistribution(dist.Poisson(k * E(a)), gate_logits=0.1),
    "mixture of counts": lambda a, k: dist.MixtureGeneral(_MIX, [dist.Poisson(k * E(a)), dist.Poisson(9.0 * k)]),
}
VECTORS = {
    "CirculantNormal": lambda a, k: dist.CirculantNormal(a[..., None] + np.zeros(3, np.float32), np.float32([2.0, 0.5, 0.5])),
    "Dirichlet": lambda a, k: dist.Dirichlet(2.0 * E(a[..., None] * TWO) * k),
    "DirichletMultinomial": lambda a, k: dist.DirichletMultinomial(2.0 * E(a[..., None] * TWO), TRIALS * k),
    "EulerMaruyama": lambda a, k: dist.EulerMaruyama(jnp.arange(4.0), lambda x, t: (-x * E(a), k * jnp.ones(1)), dist.Normal(0, 1).expand([1]).to_event(1)),
    "GaussianRandomWalk": lambda a, k: dist.GaussianRandomWalk(E(a), 3),
    "GaussianStateSpace": lambda a, k: dist.GaussianStateSpace(3, 0.5 * EYE, scale_tril=E(a) * EYE),
    "HurdleGamma": lambda a, k: dist.HurdleGamma(0.3, E(a), 2.0 * k),
    "HurdleLogNormal": lambda a, k: dist.HurdleLogNormal(0.3, a, k),
    "InverseWishart": lambda a, k: dist.InverseWishart(5.0 * k, scale_tril=E(a) * EYE),
    "LKJ": lambda a, k: dist.LKJ(2, E(a)),
    "LKJCholesky": lambda a, k: dist.LKJCholesky(2, E(a)),
    "LowRankMultivariateNormal": lambda a, k: dist.LowRankMultivariateNormal(a[..., None] + TWO, TWO[:, None], k * np.ones(2, np.float32)),
    "MatrixNormal": lambda a, k: dist.MatrixNormal(a + np.zeros((2, 2), np.float32), EYE, EYE),
    "Multinomial": lambda a, k: dist.Multinomial(TRIALS * k, logits=a[..., None] * TWO),
    "MultinomialProbs": lambda a, k: dist.Multinomial(TRIALS * k, probs=jax.nn.softmax(a[..., None] * TWO)),
    "MultivariateNormal": lambda a, k: dist.MultivariateNormal(a[..., None] + TWO, EYE),
    "MultivariateStudentT": lambda a, k: dist.MultivariateStudentT(4.0 * k, a[..., None] + TWO, EYE),
    "ProjectedNormal": lambda a, k: dist.ProjectedNormal(a[..., None] + TWO),
    "SineBivariateVonMises": lambda a, k: dist.SineBivariateVonMises(a, a, 1.0 * k, 1.0, 0.2),
    "SineSkewed": lambda a, k: dist.SineSkewed(dist.VonMises(a[..., None] + TWO, 1.0).to_event(1), 0.2 + TWO * 0.0),
    "Wishart": lambda a, k: dist.Wishart(5.0 * k, scale_tril=E(a) * EYE),
    "ZeroSumNormal": lambda a, k: dist.ZeroSumNormal(E(a), (3,)),
    "two normal numbers": lambda a, k: dist.Normal(a[..., None] + TWO, k).to_event(1),
    "two counts": lambda a, k: dist.Poisson(k * E(a[..., None] + TWO)).to_event(1),
}  # fmt: skip
LAWS = ON_REALS | TIMES | BOUNDED | COUNTS | VECTORS
_SCALAR = {*ON_REALS, *TIMES, *BOUNDED}
_TRUNCATED = {"Cauchy", "Laplace", "Logistic", "Normal", "SoftLaplace"}
VARIANTS = (
    "plain", "whole numbers", "float arguments", "integer arguments", "masked", "missing", "left", "right", "interval",
    "left truncated", "right truncated", "two-sided",
)  # fmt: skip
METHODS = ("NoiseAware", "MCMC", "SVI")
_TRACED = "traced"
RAN, REFUSED, RAW, CHARGED = "ran", "refused before a charge", "raw", "charged without samples"


def applies(law, variant):
    """Whether a law has a variant: NumPyro truncates five laws by itself, and its censored laws are of one number."""
    if "truncated" in variant or variant == "two-sided":
        return law in _TRUNCATED
    return law in _SCALAR or variant not in ("left", "right", "interval")


def law_of(law, variant):
    """The law as a function of a latent and of a number 1, that is a float or an integer."""
    whole = {"float arguments": jnp.float32, "integer arguments": jnp.int32}.get(variant)
    base = LAWS[law]

    def built(a, k=1):
        found = base(jnp.asarray(a), jnp.asarray(k, whole) if whole is not None else k)
        if variant == "left truncated":
            return dist.TruncatedDistribution(found, low=-1.0)
        if variant == "right truncated":
            return dist.TruncatedDistribution(found, high=2.0)
        return dist.TruncatedDistribution(found, low=-1.0, high=2.0) if variant == "two-sided" else found

    return built


def case(law, variant):
    """A model, and its arguments."""
    built, rng = law_of(law, variant), np.random.default_rng(0)
    y = np.asarray(law_of(law, variant.replace("float arguments", "plain"))(0.3).sample(jax.random.key(1), (N,)))
    a = lambda: numpyro.sample("a", dist.Normal(0, 1))  # noqa: E731
    if variant in ("left", "right"):
        end = np.float32(np.quantile(y, 0.5)) + rng.uniform(0, 0.1, N).astype(np.float32)
        beyond = y < end if variant == "left" else y > end
        kind = dist.LeftCensoredDistribution if variant == "left" else dist.RightCensoredDistribution

        def model(y, beyond, end):
            latent = a()
            with numpyro.plate("data", y.shape[0]):
                numpyro.sample("y", kind(built(latent), beyond), obs=y, infer={"censored_by": end})

        return model, (np.where(beyond, end, y), beyond, end)
    if variant == "interval":
        visits = np.quantile(y, [0.3, 0.6, 0.9]).astype(np.float32)
        below = (visits[None] < y[:, None]).sum(1)
        edges = np.concatenate([visits[:1], visits, visits[-1:]])
        ends = np.stack([edges[below], edges[below + 1]], axis=-1)

        def model(y, left, right, visits):
            latent = a()
            with numpyro.plate("data", y.shape[0]):
                law = dist.IntervalCensoredDistribution(built(latent), left, right)
                numpyro.sample("y", law, obs=y, infer={"inspected_at": visits})

        return model, (ends, below == 0, below == 3, np.tile(visits, (N, 1)))
    if variant == "masked":

        def model(y, ok):
            latent = a()
            with numpyro.plate("data", y.shape[0]), handlers.mask(mask=ok):
                numpyro.sample("y", built(latent), obs=y)

        return model, (y, rng.random(N) < 0.8)
    k = {"float arguments": np.ones(N, np.float32), "integer arguments": np.ones(N, np.int32)}.get(variant)
    if k is not None:

        def model(y, k):
            latent = a()
            with numpyro.plate("data", y.shape[0]):
                own = built(latent, k)
                numpyro.sample("y", own if own.batch_shape else own.expand([len(k)]), obs=y)

        if law in VECTORS:  # arguments of vectors have axes of their own: one number for all rows

            def model(y, k):
                latent = a()
                with numpyro.plate("data", y.shape[0]):
                    numpyro.sample("y", built(latent, 1.0 if variant == "float arguments" else 1), obs=y)

        return model, (y, k)
    if variant == "missing":
        y = y.astype(np.float32)
        y[:3] = np.nan
    elif variant == "whole numbers":
        is_whole = np.issubdtype(y.dtype, np.integer)
        y = y.astype(np.float32) if is_whole else np.round(y).astype(np.int32)  # the other kind than the law's own

    def model(y):
        latent = a()
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", built(latent), obs=y)

    return model, (y,)


def _noise_aware(model, args):
    runner = dpppl.NoiseAware(model, num_samples=5, progress_bar=False, **BUDGET)
    return runner, lambda: runner.run(dpppl.secret_key(), *args), lambda: runner


def _mcmc(model, args):
    kernel = dpppl.DPSGLD(model)
    runner = dpppl.MCMC(kernel, num_warmup=2, num_samples=4, progress_bar=False, **BUDGET)
    return runner, lambda: runner.run(dpppl.secret_key(), *args), lambda: runner


def _svi(model, args):
    runner = dpppl.SVI(model, AutoNormal(model), **BUDGET)
    found = []
    run = lambda: found.append(runner.run(dpppl.secret_key(), 3, *args, progress_bar=False))  # noqa: E731
    return runner, run, lambda: found[0]


BUDGET = dict(target_epsilon=50.0, target_delta=1e-5, print_cost=False)
_RUNS = {"NoiseAware": _noise_aware, "MCMC": _mcmc, "SVI": _svi}


def _read(result):
    """All that a user reads of a run; samples by site."""
    str(result.privacy_report()), str(result.verdict), result.verdict.line(), result.verdict.by_site
    if isinstance(result, dpppl.SVIResult):
        return result.sample_posterior(jax.random.key(0), 5, result.averaged_params(allow_unconverged=True))
    result.print_summary()
    return result.get_samples(allow_unconverged=True)


class _Traced(Exception):
    """A case came to where its programs would be compiled."""


def stop_when_traced():
    """From now on each case ends there, in this process."""

    def stop(*_, **__):
        raise _Traced

    placing.lowered = stop


def judge(law, variant, method):
    """What comes of a case: (kind, words)."""
    try:
        model, args = case(law, variant)
        runner, run, result = _RUNS[method](model, args)
    except Exception as error:
        return RAW, f"not built: {type(error).__name__}: {error}"
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            run()
            samples = _read(result())
    except _Traced:
        return RAN, _TRACED
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        if runner.budget.charged:
            return CHARGED, words
        return (REFUSED if isinstance(error, dpppl.DPPPLError) else RAW), words
    return (RAN, "") if samples else (CHARGED, "no samples")


def cases(names, methods=METHODS):
    """All cases of these laws."""
    return [(law, v, m) for law in names for v in VARIANTS if applies(law, v) for m in methods]


def sampled(every, count):
    """So many of these cases, the same in each call: one of each variant and method, then a second, and so on."""
    rng, groups = random.Random(0), {}
    for each in every:
        groups.setdefault(each[1:], []).append(each)
    for group in groups.values():
        rng.shuffle(group)
    turns = itertools.zip_longest(*rng.sample(list(groups.values()), len(groups)))
    return [each for turn in turns for each in turn if each is not None][:count]


def known(path):
    """Results so far, by case."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {tuple(each["case"]): (each["kind"], each["words"]) for each in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("laws", nargs="*", help="names of laws; all where none is given")
    parser.add_argument("--file", type=Path, default=Path("laws_grid.jsonl"), help="where results are kept")
    parser.add_argument("--show", action="store_true", help="print the message of each case that did not run")
    parser.add_argument("--again", action="store_true", help="run what failed once more")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="run these methods alone")
    parser.add_argument("--trace", action="store_true", help="end each case before its programs are compiled")
    parser.add_argument("--sample", type=int, help="run so many cases alone, of all laws and variants")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    parser.add_argument("--laws-at-a-time", type=int, default=3, help="how many laws a process takes")
    given = parser.parse_args()
    names, every = given.laws or list(LAWS), cases(given.laws or list(LAWS), given.methods)
    if given.sample is not None:
        every = [each for each in sampled(cases(LAWS, given.methods), given.sample) if each[0] in names]
    if given.again:
        kept = {each: found for each, found in known(given.file).items() if found[0] in (RAN, REFUSED)}
        given.file.write_text("".join(_line(each, *found) for each, found in kept.items()))
    left = [each for each in every if each not in known(given.file)]
    if given.here:
        if given.trace:
            stop_when_traced()
        for each in left:
            with given.file.open("a") as file:
                file.write(_line(each, *judge(*each)))
        return 0
    laws = [law for law in names if any(each[0] == law for each in left)]
    for first in range(0, len(laws), given.laws_at_a_time):
        own = laws[first : first + given.laws_at_a_time]
        subprocess.run(
            [
                sys.executable,
                __file__,
                "--here",
                *["--trace"] * given.trace,
                *([] if given.sample is None else ["--sample", str(given.sample)]),
                "--file",
                str(given.file),
                *own,
                "--methods",
                *given.methods,
            ],
            check=False,
        )
        print(f"{min(first + given.laws_at_a_time, len(laws))} of {len(laws)} laws", file=sys.stderr)
    found = {each: result for each, result in known(given.file).items() if each in set(every)}
    missing = len(every) - len(found)
    count = Counter((method, kind) for (_, _, method), (kind, _) in found.items())
    print(f"{'':12}" + "".join(f"{kind:>26}" for kind in (RAN, REFUSED, RAW, CHARGED)))
    for method in given.methods:
        print(f"{method:12}" + "".join(f"{count[method, kind]:26}" for kind in (RAN, REFUSED, RAW, CHARGED)))
    if missing:
        print(f"{missing} cases have no result: their process ended early.")
    for each, (kind, words) in found.items():
        if kind in (RAW, CHARGED) or (given.show and kind == REFUSED):
            print(f"{', '.join(each)}: {kind}: {words}")
    return int(missing > 0 or any(kind in (RAW, CHARGED) for kind, _ in found.values()))


def _line(each, kind, words):
    return json.dumps(dict(case=list(each), kind=kind, words=words)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
