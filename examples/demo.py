"""Three private posteriors compared with NUTS: who sees a doctor in a year? RAND's health insurance experiment, 20,190 rows.

    python examples/demo.py --epsilon 2.0

Each method takes its defaults, and spends the epsilon. A table and one picture, in about a minute. Needs statsmodels, for the
data; the picture needs matplotlib.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.autoguide import AutoMultivariateNormal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dpppl

PUBLIC_LARGEST = {"lncoins": 5, "idp": 1, "lpi": 8, "fmde": 9, "physlm": 1, "disea": 60, "hlthg": 1, "hlthf": 1}
"""The largest value that each column can take, known without the data. `hlthf`: fair or poor health. Poor health alone, in 1.5 %
of the rows, is too rare to be learned."""


def rand_health_insurance():
    """Columns (20,190, 8) in units of their largest values, and whether there was a visit (20,190,)."""
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    table["hlthf"] += table["hlthp"]
    columns = [table[name].to_numpy() / most for name, most in PUBLIC_LARGEST.items()]
    return np.stack(columns, axis=1).astype(np.float32), (table["mdvis"].to_numpy() > 0).astype(np.float32)


def visits(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 5).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + intercept), obs=y)


def posteriors(x, y, epsilon, delta):
    """Of each method: samples by site, and the verdict, which NUTS has none of."""
    exact = MCMC(NUTS(visits, dense_mass=True), num_warmup=300, num_samples=500, progress_bar=False)
    exact.run(jax.random.key(0), x, y)
    budget = {"target_epsilon": epsilon, "target_delta": delta}
    aware = dpppl.NoiseAware(visits, **budget)
    aware.run(dpppl.secret_key(), x, y)
    chain = dpppl.MCMC(dpppl.DPSGHMC(visits), num_warmup=200, num_samples=1_300, **budget)
    chain.run(dpppl.secret_key(), x, y)
    svi = dpppl.SVI(visits, AutoMultivariateNormal(visits), **budget)
    fit = svi.run(dpppl.secret_key(), None, x, y)
    drawn = fit.sample_posterior(jax.random.key(1), 1_000, fit.averaged_params(allow_unconverged=True))
    # The verdicts are printed below the table.
    return {
        "NUTS, without privacy": (exact.get_samples(), None),
        "NoiseAware": (aware.get_samples(allow_unconverged=True), aware.verdict),
        "MCMC with DPSGHMC": (chain.get_samples(allow_unconverged=True), chain.verdict),
        "SVI with AutoMultivariateNormal": (drawn, fit.verdict),
    }


def coefficients(samples):
    """Samples (n, D + 1) of the weights and the intercept."""
    return np.concatenate([samples["weights"], np.asarray(samples["intercept"])[:, None]], axis=1)


def print_table(names, drawn):
    """Posterior means and standard deviations side by side."""
    width = max(map(len, names))
    print("\n" + " " * width + "".join(f"  {method.split()[0].strip(','):>17}" for method in drawn))
    print(" " * width + "         mean     sd" * len(drawn))
    for number, name in enumerate(names):
        cells = (f"  {v[:, number].mean():10.2f} {v[:, number].std():6.3f}" for v in drawn.values())
        print(f"{name:{width}}" + "".join(cells))


def draw_picture(path, title, names, drawn):
    """Means and 90 % intervals side by side. Returns whether matplotlib is there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8.0, 1.5 + 0.5 * len(names)), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(names))
    colours, marks = ("black", "tab:blue", "tab:orange", "tab:green"), "osD^"
    for number, (label, samples) in enumerate(drawn.items()):
        middle, ends = samples.mean(axis=0), np.quantile(samples, (0.05, 0.95), axis=0)
        axes.errorbar(
            middle, places + 0.18 * (number - 1.5), xerr=np.abs(ends - middle), linestyle="", markersize=4, capsize=2,
            label=label, color=colours[number], marker=marks[number],
        )  # fmt: skip
    axes.axvline(0.0, color="lightgrey", zorder=0)
    axes.set(yticks=places, yticklabels=names, xlabel="coefficient: posterior mean and 90 % interval", title=title)
    axes.invert_yaxis()
    axes.legend(loc="best")
    figure.savefig(path, dpi=120)
    return True


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0, help="of each method")
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="where the picture goes")
    args = parser.parse_args(arguments)

    x, y = rand_health_insurance()
    print(f"RAND's health insurance experiment: {len(x):,} rows, logistic regression with {x.shape[1]} columns")
    found = posteriors(x, y, args.epsilon, args.delta)
    names, drawn = [*PUBLIC_LARGEST, "intercept"], {name: coefficients(samples) for name, (samples, _) in found.items()}
    print_table(names, drawn)
    for name, (_, verdict) in found.items():
        if verdict:
            print(f"{name}: {verdict.line()}")
    title = f"Any visit to a doctor in a year: {len(x):,} rows, epsilon = {args.epsilon:g}, delta = {args.delta:g}"
    drawn_it = draw_picture(args.output, title, names, drawn)
    print(f"picture: {args.output.resolve()}" if drawn_it else "picture: none, matplotlib is not installed")
    print("Costs add up: a dpppl.PrivacyLedger counts those of all runs.")


if __name__ == "__main__":
    main()
