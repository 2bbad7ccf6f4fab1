"""A likelihood that an owner publishes, and the product of several."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
import numpyro

from dpppl.errors import ConfigurationError
from dpppl.published import files
from dpppl.published.priors import Prior, Sensitivity, as_function, compared, far, sampled
from dpppl.published.records import Owner, wrong
from dpppl.published.supports import Site, coordinates
from dpppl.types import BySite, Function, Numbers
from dpppl.validation import checked, fraction, positive_integer

_SLOPE = 0.2  # the relative error of an extrapolation from where scores were summed, as measured


@dataclass(frozen=True, eq=False, repr=False)
class Likelihood:
    """The likelihood of latents given the releases of a private run, or of several: public, without rows and without the model.

    - **sites** - the sites whose values it takes, with shapes and supports.
    - **owners** - the runs whose likelihoods are multiplied, each with its budget and its verdict.

    It is a mixture of normal laws of the unconstrained sites, one for each draw of the curvature; it counts the privacy noise and
    the sampling of the data. Draws are equally likely under the run's own prior.

    Guarantee: a function of the run's releases and public values; whatever is made of it costs nothing more.

    >>> likelihood = Likelihood.from_file("hospital.likelihood")  # doctest: +SKIP
    >>> likelihood.log_prob({"w": jnp.zeros(24), "intercept": 0.0})  # doctest: +SKIP
    """

    sites: tuple[Site, ...]
    owners: tuple[Owner, ...]

    def log_prob(self, values: BySite, *, by_owner: bool = False) -> jax.Array:
        """The log likelihood, but for a constant, of constrained values by site; differentiable.

        - **values** - by site, (..., *shape): leading axes are mapped over. Other sites are ignored.
        - **by_owner** - whether values are (..., owners, *shape): of a pool, each owner's own, as of random effects.

        No Jacobian belongs to it: it is a likelihood, whatever the prior of the values. Raises ConfigurationError for values that
        do not fit."""
        z, count = coordinates(self.sites, values), len(self.owners)
        if by_owner and z.shape[-2:-1] != (count,):
            raise ConfigurationError(
                f"with by_owner=True values by site are (..., {count}, *shape), one for each owner; got leading axes "
                f"{z.shape[:-1]}: sample them in numpyro.plate('owners', {count})."
            )
        each = [z[..., i, :] if by_owner else z for i in range(count)]
        logs = [owner.mixture.log_prob(own, count) for owner, own in zip(self.owners, each)]
        return sum(logs[1:], logs[0])

    def factor(self, values: BySite, name: str = "published", *, by_owner: bool = False) -> None:
        """Multiply a NumPyro model by the likelihood: call it inside the model.

        - **values**, **by_owner** - values of the model's sites, as for `log_prob`.
        - **name** - of the factor; each likelihood of a model has its own."""
        numpyro.factor(name, self.log_prob(values, by_owner=by_owner))

    def model(self, prior: Prior) -> Function:
        """The NumPyro model without arguments whose posterior is the prior times the likelihood.

        - **prior** - distributions by site, or a NumPyro model without arguments that has a site of each name."""
        values = as_function(self.sites, prior)
        return lambda: self.factor(values())

    def sample(self, rng_key: jax.Array, prior: Prior, num_samples: int = 2_000) -> dict[str, Numbers]:
        """Draw from the posterior under a prior, by NUTS; by site, (num_samples, ...), those of the prior's model, too.

        - **rng_key** - of the draws.
        - **prior** - see `model`.
        - **num_samples** - of two chains together.

        Raises ConfigurationError where the chains do not agree."""
        count = positive_integer(num_samples, name="num_samples")
        found, problem = sampled(self.sites, self.model(prior), rng_key, count)
        if problem is not None:
            raise ConfigurationError(
                f"{problem}: write the prior with better scaled sites, or run NUTS on likelihood.model."
            )
        return found

    @checked
    def sensitivity(
        self, rng_key: jax.Array, priors: Mapping[str, Prior], num_samples: int = 2_000, prob: float = 0.9
    ) -> Sensitivity:
        """Compare posteriors under several priors: print it for a table of estimates and intervals.

        - **rng_key** - of the draws.
        - **priors** - by name, each as `model` takes it.
        - **num_samples** - draws under each prior.
        - **prob** - the mass of the intervals.

        A finding names each prior whose posterior lies where an owner made no look at its rows."""
        count, mass = positive_integer(num_samples, name="num_samples"), fraction(prob, name="prob")
        return compared(self.sites, self.owners, self.factor, priors, rng_key, count, mass)

    def far_from_looks(self, values: BySite) -> list[str]:
        """Sentences on owners who made no look at their rows where most of these draws lie; empty where there are none.

        - **values** - draws by site, (draws, *shape)."""
        return far(self.sites, self.owners, values)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `from_file` reads, in any process, without rows and without the model.

        - **path** - of the file; one that exists is replaced."""
        files.write(path, self.sites, self.owners)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Likelihood":
        """Read a file of `to_file`; nothing in it is executed.

        - **path** - of the file.

        Raises ConfigurationError for a file that is damaged, too large, of another version, or malformed in any way."""
        return cls(*files.read(path))

    def report(self) -> dict[str, object]:
        """Sites, owners and budgets, as JSON has them."""
        return {
            "sites": {site.name: site.words for site in self.sites},
            "owners": [owner.facts.document() for owner in self.owners],
            "draws": [len(owner.mixture.log_weights) for owner in self.owners],
            "epsilon_of_disjoint_rows": max(owner.facts.epsilon for owner in self.owners),
            "epsilon_of_recurring_persons": sum(owner.facts.epsilon for owner in self.owners),
            "delta_of_recurring_persons": sum(owner.facts.delta for owner in self.owners),
        }

    @property
    def headline(self) -> str:
        """The sites of which it is one."""
        return f"Likelihood of {', '.join(f'{site.name} {site.words}' for site in self.sites)}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Names and words of what readers must know: the budget and the verdict of each owner, and what follows for a person."""
        facts = [owner.facts for owner in self.owners]
        found = [("unit", f"{facts[0].unit}; relation: {facts[0].relation}")]
        for each in facts:
            width = "" if each.width == "model" else f"; {each.width} width"
            found.append((each.name, f"{each.num_rows:,} rows or units, {each.budget}{width}; {each.verdict}"))
        if len(facts) > 1:
            total, delta = sum(each.epsilon for each in facts), sum(each.delta for each in facts)
            found += [
                ("a person with rows at one owner", "has the guarantee of that owner"),
                ("a person with rows at all owners", f"has the sum, epsilon {total:.4g} at delta {delta:g}"),
            ]
            far = float(np.mean([owner.mixture.arrival for owner in self.owners]))
            if (error := _SLOPE * far * len(facts) ** 0.5) > 1.0:
                found.append((
                    "Read with care",
                    f"owners summed scores {far:.1f} sd from their estimates on average. Errors of that extrapolation are common "
                    f"to owners, so they may move the pool by {error:.1f} sd: give owners a narrower common prior, such as an "
                    "earlier pool, or larger budgets.",
                ))  # fmt: skip
        found += wrong(self.owners)
        refused = ", ".join(each.name for each in facts if each.is_refused)
        return [*found, ("Do not read", f"the verdict refuses the run of {refused}")] if refused else found

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"{name}: {words}" for name, words in self.rows)])

    def __repr__(self) -> str:
        return f"<Likelihood of {[site.name for site in self.sites]} by {[owner.facts.name for owner in self.owners]}>"


@checked
def pool(likelihoods: Sequence[Likelihood], *, any_program: bool = False) -> Likelihood:
    """Return the product of the likelihoods of several owners: all their rows, for one common parameter.

    - **likelihoods** - of owners whose rows differ, or of years; of the same model, columns and public values.
    - **any_program** - whether the models' programs may differ: owners on other versions of JAX compile other programs. Then the
      caller vouches for one model.

    Each owner's budget stays its own: the epsilon of a person is that of its owner, and the sum for persons with rows at several.
    The noise grows with the number of owners. For parameters that differ between owners write a model with effects, and call
    `factor(..., by_owner=True)` in it. Raises ConfigurationError, naming owner and difference, for those that do not fit."""
    each = list(likelihoods)
    if not each or not all(isinstance(one, Likelihood) for one in each):
        raise ConfigurationError(
            "pool takes likelihoods, pool([a, b]), as NoiseAware.likelihood or Likelihood.from_file give them."
        )
    owners = [owner for one in each for owner in one.owners]
    first, seen = owners[0].facts, dict[str, str]()
    for other in each[1:]:
        ours, theirs = ({site.name: site.words for site in one.sites} for one in (each[0], other))
        _check_same("sites", ours, theirs, first.name, other.owners[0].facts.name)
    for facts, digest in ((owner.facts, owner.digest) for owner in owners):
        names = first.name, facts.name
        _check_same("columns", first.columns, facts.columns, *names)
        _check_same("Public arguments", first.public, facts.public, *names)
        for what in ("unit", "relation"):
            if getattr(first, what) != getattr(facts, what):
                raise ConfigurationError(
                    f"the {what} of {first.name} is another than that of {facts.name}, so their budgets are not comparable: run "
                    f"both with one {what}."
                )
        if first.program != facts.program and not any_program:
            is_same = dict(first.versions) == dict(facts.versions)
            raise ConfigurationError(
                f"the models of {first.name} and {facts.name} compute other log likelihoods of a row"
                + (": run both with one model." if is_same else
                   ", or other versions of JAX compiled them: pool(..., any_program=True) if they are versions of one model.")
            )  # fmt: skip
        if digest in seen:
            raise ConfigurationError(
                f"the likelihood of {seen[digest]} is given twice, also as {facts.name}, so its rows would count twice: give it "
                "once."
            )
        seen[digest] = facts.name
    return replace(each[0], owners=tuple(owners))


def _check_same(what: str, ours: Mapping[str, str], theirs: Mapping[str, str], *owners: str) -> None:
    """Raise ConfigurationError where two owners' `what`, by name, differ."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    if names:
        name, a, b = names[0], ours.get(names[0], "none"), theirs.get(names[0], "none")
        told = "has other values" if what == "Public arguments" else f"is {a} at one and {b} at the other"
        raise ConfigurationError(
            f"{what} of {owners[0]} and {owners[1]} differ: '{name}' {told}. Run both with one model, columns and public values."
        )
