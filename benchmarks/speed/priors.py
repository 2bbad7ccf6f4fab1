"""Priors that are not normal: processor seconds of samples from releases, weighted and NUTS's, and what both find.

    python benchmarks/speed/priors.py [rows]      # 6,000 by default; about five minutes on two cores

Normal responses of unknown scale, 7 columns. A line for each prior: seconds; the largest difference of means, in posterior sds, and of
sds, in logarithms; distinct draws of 2,000.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dpppl
from dpppl.noise_aware.posterior import Mixture

NORMAL, SCALE = dist.Normal(0.0, 1.0), dist.LogNormal(0.0, 1.0)
PRIORS = {  # of weights and of the scale
    "LogNormal scale": (NORMAL, SCALE),
    "HalfNormal scale": (NORMAL, dist.HalfNormal(1.0)),
    "HalfCauchy scale": (NORMAL, dist.HalfCauchy(1.0)),
    "Exponential scale": (NORMAL, dist.Exponential(1.0)),
    "InverseGamma scale": (NORMAL, dist.InverseGamma(2.0, 1.0)),
    "Gamma scale": (NORMAL, dist.Gamma(2.0, 2.0)),
    "Laplace weights": (dist.Laplace(0.0, 1.0), SCALE),
    "Cauchy weights": (dist.Cauchy(0.0, 1.0), SCALE),
    "Student-t weights": (dist.StudentT(3.0, 0.0, 1.0), dist.HalfNormal(1.0)),
}


def main():
    warnings.simplefilter("ignore")
    num_rows, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 6_000, np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 7)).astype(np.float32)
    y = (x @ np.linspace(-1.0, 1.0, 7) + 0.7 * rng.normal(size=num_rows)).astype(np.float32)
    print(
        "| prior | weighted, s | NUTS's draws, s | means differ, sds | sds differ | distinct |\n|---|---|---|---|---|---|"
    )
    weighted = Mixture.weighted
    for name, (of_weights, of_scale) in PRIORS.items():

        def model(x, y, of_weights=of_weights, of_scale=of_scale):
            w = numpyro.sample("w", of_weights.expand([7]).to_event(1))
            scale = numpyro.sample("scale", of_scale)
            with numpyro.plate("rows", x.shape[0]):
                numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

        private = dpppl.NoiseAware(model, target_epsilon=1.0, target_delta=1e-5, print_cost=False, progress_bar=False)
        private.run(dpppl.secret_key(), x, y)
        seconds, found = [], []
        for how in (weighted, lambda *_: None):
            Mixture.weighted = how
            start = time.process_time()
            private.sample_again(dpppl.secret_key(), x, y)
            seconds.append(time.process_time() - start)
            again = private.get_samples(allow_unconverged=True)
            found.append(np.column_stack([again["w"], again["scale"]]).astype(float))
        Mixture.weighted = weighted
        (mean, sd), (other, wide) = ((z.mean(axis=0), z.std(axis=0)) for z in found)
        off, ratio = np.abs((mean - other) / wide).max(), np.abs(np.log(sd / wide)).max()
        distinct = len(np.unique(found[0][:, 0]))
        print(f"| {name} | {seconds[0]:.2f} | {seconds[1]:.2f} | {off:.2f} | {ratio:.2f} | {distinct} |", flush=True)


if __name__ == "__main__":
    main()
