"""Lists what a run would keep private, make public, release, refuse and take, before any budget is spent."""

import math
from dataclasses import dataclass
from time import perf_counter, process_time

import jax
from numpyro.infer.autoguide import AutoNormal

from dpppl.accounting.planning import Option, Plan, plan
from dpppl.errors import ConfigurationError, UnsupportedModelError
from dpppl.mcmc.three_kernels import DPSGLD
from dpppl.model.split import SplitModel
from dpppl.model.supports import first_values
from dpppl.model.units import split_in_units
from dpppl.noise_aware.binding import BoundModel, bind
from dpppl.noise_aware.forecast import Width, widths
from dpppl.noise_aware.runner import NoiseAware
from dpppl.randomness import keys
from dpppl.report.labels import Labels
from dpppl.report.render import summary, table
from dpppl.report.report import ASSUMED_PUBLIC
from dpppl.row_statistics.coordinates import MOST_FULL
from dpppl.runs.driver import TRACING, on_host
from dpppl.runs.duration import Duration
from dpppl.svi.binding import bind_objective
from dpppl.svi.elbo import Objective
from dpppl.svi.runner import SVI
from dpppl.types import Document, Function, Tree
from dpppl.validation import checked


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of `check`. It prints as a table, also in a notebook.

    - **arguments** - for each argument, whether it is private rows or public, with its shape.
    - **released** - for each latent and deterministic site of a posterior, its shape.
    - **used_only** - observed sites and latents of rows, which no method releases.
    - **methods** - for each method "runs" with a forecast, or the error that its run would raise.
    - **widths** - for each latent that NoiseAware would inform, widths of its 90 % interval: with and without privacy.
    - **notes** - assumptions that the report of a run would list, and arguments whose type does not say what they hold."""

    arguments: tuple[tuple[str, str], ...]
    released: tuple[tuple[str, str], ...]
    used_only: tuple[str, ...]
    methods: tuple[tuple[str, str], ...]
    widths: tuple[Width, ...]
    notes: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Lines of the table: pairs of a name and a text."""
        lines = [(f"argument {name}", words) for name, words in self.arguments]
        lines += [(f"released {name}", words) for name, words in self.released]
        lines += [("never released", ", ".join(self.used_only) or "(no observed site)")]
        some, more = self.widths[:_MOST_WIDTHS], len(self.widths) - _MOST_WIDTHS
        of_latents = [(f"90 % width of {w.name}", f"{w.width:.2g}; {w.without:.2g} without privacy") for w in some]
        of_latents += [("90 % widths", f"{more} more in its `widths`")] if more > 0 else []
        return [*lines, *self.methods, *of_latents]

    def __repr__(self) -> str:
        return "\n".join([_HEADLINE, *table(self.rows()), *(f"  - {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return summary(_HEADLINE, self.rows(), [("Assumptions", self.notes)], "What a run would do", is_open=True)


_HEADLINE = "Nothing was run and nothing was charged."
_MOST_WIDTHS = 30
_STANDARDISED = (
    "widths by latent are of NoiseAware, at a typical draw of the prior, on made-up rows: they assume standardised columns "
    "(a weight of a column with sd s is about 1 / s times as wide), equally frequent codes, and no missing values."
)


@on_host
@checked
def check(
    model: Function, *args: object, target_epsilon: float = 1.0, target_delta: float = 1e-6, labels: Tree = None,
    **kwargs: object,
) -> Checked:  # fmt: skip
    """Tabulate what a run on these arguments would keep private, make public, release, refuse and take.

    - **model** - a NumPyro model with one data plate.
    - **args**, **kwargs** - the model's arguments, as for `run`.
    - **target_epsilon**, **target_delta** - the budget that forecasts are for.
    - **labels** - of elements, as for `dpppl.NoiseAware`.

    Guarantee: no value of a private argument is read, and nothing is charged.
    Widths of methods are forecasts of `accounting.plan` for one typical direction. Those of latents are for NoiseAware, on rows
    that are made up: columns are standard normal, codes uniform, nothing is missing, and latents are drawn from the prior. They
    fit columns that are standardised. Times are of full batches, with tracing, the proof and
    compilation, from the equations of a row's program and from how busy the machine is now: good to a factor of about two.
    Raises UnsupportedModelError or ConfigurationError where no method can run.

    >>> import dpppl, numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(y, num_groups):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1).expand([num_groups]).to_event(1))
    ...     with numpyro.plate("data", y.shape[0]):
    ...         numpyro.sample("y", dist.Normal(mu[0], 1), obs=y)
    >>> found = dpppl.check(model, np.zeros(1000, np.float32), num_groups=2)
    >>> isinstance(found, dpppl.Checked)
    True
    >>> dict(found.arguments)
    {'y': 'private rows, float32 (1000,)', 'num_groups': 'public'}
    >>> dict(found.released), found.used_only
    ({'mu': '(2,)'}, ('y',))
    """
    with TRACING:
        split = split_in_units(model, args, kwargs, variational=True)
    known = split.arguments
    words = [(name, f"private rows, {s.dtype} {s.shape}") for name, s in known.rows.items()]
    words += [(name, f"public, {s.dtype} {s.shape}") for name, s in known.public.items()]
    words += [(name, "public") for name in known.static]
    latents = {name: s for name, s in split.latents.items() if name not in split.local}
    shapes = jax.eval_shape(split.constrain, latents, known.public)
    names = Labels.of(labels, {name: s.shape for name, s in shapes.items()})
    methods, predicted, why_none, notes = _methods(model, split, args, kwargs, target_epsilon, target_delta)
    public = [f"{ASSUMED_PUBLIC}{', '.join(split.assumed_public)}."] if split.assumed_public else []
    about = _STANDARDISED if predicted else f"no widths by latent are predicted: {why_none}."
    return Checked(
        arguments=tuple(words), released=tuple((name, str(s.shape)) for name, s in shapes.items()),
        used_only=(*_observed(split), *split.local, *(name for name, _ in split.summed)),
        methods=methods, widths=tuple(w._replace(name=names.named(w.name)) for w in predicted),
        notes=(*public, *notes, *known.by_entry, *([about] if predicted or why_none else [])),
    )  # fmt: skip


def _observed(split: SplitModel) -> tuple[str, ...]:
    """Names of the observed sites."""
    names: list[str] = []

    def note(site: Document) -> Tree:
        names.append(site["name"])
        return site["value"]

    first = first_values(split)
    explore = lambda z, row, public: split.visit_observed(note, z, row, public, first) and None  # noqa: E731
    jax.eval_shape(explore, split.latents, split.row, split.arguments.public)
    return tuple(dict.fromkeys(names))


def _methods(model: Function, split: SplitModel, args: Tree, kwargs: Tree, epsilon: float, delta: float) -> Tree:
    """Each method, with what came of binding it; widths of NoiseAware by latent, or why there are none; notes on the model."""
    key, noise = keys.as_key(jax.random.key(0)), {"noise_multiplier": 10.0}
    svi = SVI(model, AutoNormal(model), **noise)
    tried: dict[str, Function] = {
        "NoiseAware": lambda: bind(NoiseAware(model, **noise), args, kwargs, key),
        "DPSGLD": lambda: DPSGLD(model, **noise).bind(args, kwargs),
        "SVI": lambda: bind_objective(svi, key, args, kwargs)[0],
    }
    lines: list[tuple[str, str]] = []
    predicted, why_none, notes = list[Width](), "", split.notes
    size, busy, accesses = sum(math.prod(s.shape) for s in split.latents.values()), _Clock(), None
    found = plan(num_data=split.num_rows, num_latents=size, target_epsilon=epsilon, target_delta=delta, rates=(1.0,))
    for name, attempt in tried.items():
        try:
            with TRACING:
                bound = attempt()
        except (ConfigurationError, UnsupportedModelError) as error:
            lines.append((name, f"refused: {error}"))
            continue
        option = next((o for o in found.options if o.method == name), None)
        if option is None:
            lines.append((name, f"runs, but epsilon {epsilon:g} shows nothing: {found.reason}"))
            continue
        of_rows = (bound.responses, bound.coordinates.moves) if isinstance(bound, BoundModel) else ()
        rate = svi.mechanism_for(bound).subsampling.rate if isinstance(bound, Objective) else 1.0
        time = Duration.of(split, rate * option.row_gradients, *of_rows)
        if isinstance(bound, BoundModel):
            accesses = time
        elif accesses is not None and size <= MOST_FULL:
            time = time.after(accesses)
        wide = f"; the model is wide: clipping is flat, and a step takes {rate * split.num_rows:,.0f} rows"
        wide = wide if isinstance(bound, Objective) and bound.wide_scale is not None else ""
        lines.append((name, f"runs; {time.words(busy.ratio())}{wide}; {_width(option, found)}"))
        if isinstance(bound, BoundModel):
            (predicted, why_none), notes = widths(bound, option.learned_above / found.row_curvature, key), bound.notes
    return tuple(lines), predicted, why_none, notes


def _width(option: Option, found: Plan) -> str:
    """The forecast of a method's intervals."""
    width = option.interval / found.interval_without_privacy
    times = f"{width:.2f} times as wide as without privacy" if width >= 1.005 else "hardly wider than without privacy"
    if option.coverage is None:
        return f"its mean alone, known to an interval {times}: {option.num_steps:,} steps are too short a chain for a spread"
    if option.method == "NoiseAware":
        return f"90 % intervals {times}, for each latent that the rows inform; {found.read_from}"
    if option.coverage < 0.85:
        return (
            f"its mean alone: its 90 % intervals would cover {option.coverage:.2f}, and one that covers .90 is {times}"
        )
    return f"90 % intervals {times}, which cover about {option.coverage:.2f}"


class _Clock:
    """By how much this machine is slower now than an idle core: seconds that went by over those of the processor."""

    def __init__(self) -> None:
        self._began = perf_counter(), process_time()

    def ratio(self) -> float:
        passed, worked = perf_counter() - self._began[0], process_time() - self._began[1]
        return max(1.0, passed / max(worked, 1e-3))
