"""Which guides are safe, and how they and the user's own guide are set up without data."""

import contextlib
import copy
import inspect
import math
from collections.abc import Iterator, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import autoguide, init_to_feasible, init_to_mean, init_to_median, init_to_sample, init_to_uniform
from numpyro.primitives import Messenger

from dpppl.errors import ConfigurationError, DPPPLError, UnsupportedModelError
from dpppl.information_flow.executables import run_once
from dpppl.jaxprs import VALUE_ERRORS
from dpppl.model.arguments import name_of
from dpppl.model.handlers import BindPlate, user_line
from dpppl.model.split import SplitModel
from dpppl.model.structure import plates_of
from dpppl.report.provenance import Start
from dpppl.runs.driver import is_traced
from dpppl.types import Foreign, Function, Tree

Arrays = Mapping[str, Tree]

_READ_DATA = {
    autoguide.AutoLaplaceApproximation: "AutoMultivariateNormal",
    autoguide.AutoDAIS: "AutoMultivariateNormal or AutoIAFNormal",
    autoguide.AutoSemiDAIS: "a hand-written amortised guide",
    autoguide.AutoSurrogateLikelihoodDAIS: "AutoMultivariateNormal or AutoIAFNormal",
}
_BEFORE = "_dpppl_before_set_up"
"""The attribute of a guide that was set up here: what set-up changed, as it was before."""
_MOST_QUICK = 10**5
"""The most numbers of a site whose start is compiled quickly, to run at half the speed."""


def parts_of(guide: object) -> Iterator[Tree]:
    """The parts of a guide; of a guide that is not a list, the guide itself."""
    if not isinstance(guide, autoguide.AutoGuideList):
        yield guide
        return
    for part in guide:
        yield from parts_of(part)


def check_guide(guide: object) -> None:
    """Refuse guides that read data, or have been called on them.

    Raises ConfigurationError."""
    if isinstance(guide, type):
        raise ConfigurationError(
            f"the guide is the class {guide.__name__}; make one of the model: {guide.__name__}(model)."
        )
    for part in [guide, *parts_of(guide)]:
        for kind, instead in _READ_DATA.items():
            if isinstance(part, kind):
                raise ConfigurationError(
                    f"{kind.__name__} evaluates the likelihood of the data outside the mechanism; use {instead}."
                )
        if isinstance(part, autoguide.AutoGuide) and part.prototype_trace is not None and _BEFORE not in vars(part):
            raise ConfigurationError(
                f"this {type(part).__name__} was already set up, so its starting values may depend on data; pass a new "
                "one that was not called yet."
            )
        if not callable(part):
            raise ConfigurationError("the guide must be a callable with NumPyro sites, or one of NumPyro's AutoGuides.")


@contextlib.contextmanager
def guide_explained(guide: Foreign, split: SplitModel) -> Iterator[None]:
    """Re-raise what else a guide fails with on made-up rows, with the user's line and the cure, as ConfigurationError."""
    name, model, call = type(guide).__name__, name_of(split.model), ", ".join(split.arguments.names)
    cure = f"a guide takes the model's arguments, ({call}), and draws each latent once, in the model's shape and without obs"
    if isinstance(guide, autoguide.AutoGuide):
        cure = f"make it of the model that runs: {name}({model})"
    try:
        if not isinstance(guide, autoguide.AutoGuide):
            args, kwargs = split.arguments.join(split.placeholder_rows(), split.placeholder_public())
            with contextlib.suppress(ValueError):  # it has no signature
                try:
                    inspect.signature(guide).bind(*args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"it cannot be called as the model is, {error}") from None
        yield
    except DPPPLError:
        raise
    except Exception as error:
        if isinstance(error, VALUE_ERRORS):  # `explained` says it
            raise
        if "valid initial parameters" in str(error):
            raise ConfigurationError(
                f"the prior of {model} has no finite density where {name} starts; give it a start of your own: {name}({model}, "
                f"init_loc_fn=numpyro.infer.init_to_value(values={{'{next(iter(split.latents))}': 0.5}}))."
            ) from None
        latents = ", ".join(f"'{latent}' {shape.shape}" for latent, shape in split.latents.items())
        what = name if isinstance(guide, autoguide.AutoGuide) else name_of(guide)
        raise ConfigurationError(
            f"the guide {what} fails on the arguments of {model}{user_line(error)}: {error}; {cure}. The latents are {latents}, "
            f"unconstrained; numpyro.infer.autoguide.AutoNormal({model}) draws them."
        ) from None


def on_rows(function: Function, split: SplitModel, rows: Arrays, public: Arrays, hide_rows: bool = True) -> Function:
    """`function`, a model or a guide, run on `rows` alone, each counted once, whatever it is called with.

    With `hide_rows` all sites of rows are hidden, and so are deterministic sites that depend on rows. The value returned
    can be pickled if `function` can."""
    return partial(_run_on_rows, function, split, rows, public, hide_rows)


def _run_on_rows(
    function: Function, split: SplitModel, rows: Arrays, public: Arrays, hide_rows: bool, *_: object, **__: object
) -> Tree:
    args, kwargs = split.arguments.join(dict(rows), dict(public))
    num_rows = jax.tree.leaves(rows)[0].shape[0]

    def hidden(site: dict[str, object]) -> bool:
        if not hide_rows or site["type"] not in ("sample", "plate", "deterministic"):
            return False
        if site["type"] == "deterministic":
            return site["name"] not in split.deterministic
        return site["name"] == split.data_plate or split.data_plate in plates_of(site)

    with numpyro.validation_enabled(False), handlers.block(hide_fn=hidden), BindPlate(split.data_plate, num_rows):
        return function(*args, **kwargs)


def data_free(function: Function, split: SplitModel, public: Arrays) -> Function:
    """`function`, a model or a guide, run on one made-up row, of ones; all sites of rows are hidden."""
    return on_rows(function, split, jax.tree.map(jnp.ones_like, split.placeholder_rows()), public)


class _Stop(BaseException):
    """The last site was reached."""


class SitesAlone(Messenger):
    """`data_free`, left after the last site that is not hidden, and without a value.

    So no operation on rows alone is compiled for itself where all latents are drawn before, as in networks.

    - **model**, **split**, **public** - as for `data_free`."""

    def __init__(self, model: Function, split: SplitModel, public: Arrays) -> None:
        super().__init__(data_free(model, split, public))
        self.last = -1
        seeded = handlers.seed(self, jax.random.key(0))
        jax.eval_shape(handlers.substitute(seeded, substitute_fn=init_to_feasible))
        self.last = self.count

    def __call__(self, *_: object, **__: object) -> None:
        self.count = 0
        with contextlib.suppress(_Stop), self:
            self.fn()

    def postprocess_message(self, msg: Arrays) -> None:
        self.count += 1
        if self.count == self.last:
            raise _Stop


def _quick_start(strategy: Function, site: Arrays) -> Tree:
    """`strategy(site)`, in one program that is compiled quickly; what is large is drawn sooner as it is."""
    is_free = site["type"] == "sample" and not site["is_observed"] and not site["fn"].support.is_discrete
    if not is_free or is_traced(key := site["kwargs"]["rng_key"]) or math.prod(site["fn"].shape()) > _MOST_QUICK:
        return strategy(site)
    return run_once(lambda key: strategy({**site, "kwargs": site["kwargs"] | {"rng_key": key}}), key)


def without_data(guide: object, split: SplitModel, public: Arrays, has_density: bool = True) -> Foreign:
    """A copy of `guide`, as it was built. Its first call sets it up on made-up rows and the prior alone; without `has_density`,
    also without the prior's density.

    Raises ConfigurationError if the guide was called on data since `check_guide`."""
    check_guide(guide)
    if not isinstance(guide, autoguide.AutoGuide):
        return guide
    prepared = copy.copy(guide)
    for name, value in _as_built(guide).items():
        setattr(prepared, name, dict(value) if type(value) is dict else value)
    if hasattr(prepared, _BEFORE):
        delattr(prepared, _BEFORE)
    if isinstance(guide, autoguide.AutoGuideList):
        prepared._guides = [without_data(part, split, public, has_density) for part in guide]
    prepared.model = SitesAlone(prepared.model, split, public)
    if not has_density:
        prepared.model = handlers.mask(prepared.model, mask=False)
    if _strategy(guide) is init_to_median:
        prepared.init_loc_fn = partial(_quick_start, prepared.init_loc_fn)
    return prepared


def _as_built(guide: object) -> dict[str, Tree]:
    """The attributes of a guide, without what its set-up here changed."""
    return {name: value for name, value in (vars(guide) | vars(guide).get(_BEFORE, {})).items() if name != _BEFORE}


def adopt(guide: Foreign, prepared: Foreign) -> None:
    """Set the user's `guide` up as `prepared`, its copy, has been, so that its own methods work: `sample_posterior`,
    `median`, `quantiles`, and Predictive, on inputs of any length.

    `check_guide` accepts it afterwards, and `without_data` starts from the guide as it was built. A guide that was set
    up within a trace, such as jax.jit, is left as it is: it would keep tracers.
    Guarantee: as for `prepared`, no attribute depends on private rows."""
    if not isinstance(guide, autoguide.AutoGuide):
        return
    built = _as_built(guide)
    state = vars(prepared) | {name: x for name, x in built.items() if name == "init_loc_fn"}
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state.get("_init_locs", {}))):
        return
    if isinstance(guide, autoguide.AutoGuideList):
        for part, its in zip(guide, prepared):
            adopt(part, its)
        state["_guides"] = guide._guides
    changed = {name: built.get(name) for name, value in state.items() if value is not built.get(name)}
    for name, value in (state | {_BEFORE: changed}).items():
        setattr(guide, name, value)


def unconstrained(guide: object, traces: Arrays, params: Arrays, split: SplitModel) -> dict[str, Tree]:
    """The unconstrained latents of one guide draw, from the traces of guide and model and the unconstrained params."""
    trace, z = traces["guide"], dict[str, Tree]()
    for part in parts_of(guide):
        if isinstance(part, autoguide.AutoContinuous):
            z |= part._unpack_latent(trace[f"_{part.prefix}_latent"]["value"])
        elif isinstance(part, autoguide.AutoDelta):
            z |= {name: params[f"{name}_{part.prefix}_loc"] for name in part._init_locs}
        elif isinstance(part, autoguide.AutoNormal):
            z |= {name: site["intermediates"][0][0] for name, site in trace.items() if site.get("intermediates")}
    for name in split.latents.keys() - z.keys():
        z[name] = biject_to(traces["model"][name]["fn"].support).inv(trace[name]["value"])
    return {name: jnp.reshape(z[name], latent.shape) for name, latent in split.latents.items()}


def check_sites(trace: Arrays, split: SplitModel) -> None:
    """The guide must draw the model's latents, each once, as a differentiable function of its parameters.

    Raises ConfigurationError or UnsupportedModelError."""
    sites = {name: s for name, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    drawn = {name for name, site in sites.items() if not site["infer"].get("is_auxiliary")}
    expected = {*split.latents, *split.local}
    if drawn != expected:
        raise ConfigurationError(
            "the guide and the model have different latent sites: missing from the guide "
            f"{sorted(expected - drawn)}, unknown to the model {sorted(drawn - expected)}; let the guide draw each latent of the "
            "model under its name, or take numpyro.infer.autoguide.AutoNormal(model) of the model that runs."
        )
    for name, site in sites.items():
        if (split.data_plate in plates_of(site)) != (name in split.local):
            raise ConfigurationError(
                f"site '{name}' is inside the data plate '{split.data_plate}' in one of guide and model only; write the guide's "
                "site where the model's is."
            )
        if not site["fn"].has_rsample:
            raise UnsupportedModelError(
                f"the guide's site '{name}' ({type(site['fn']).__name__}) has no reparametrised samples (rsample); "
                "draw it from a reparametrised distribution, such as a transformed Normal."
            )


def check_shapes(guide_sites: Arrays, model_sites: Arrays, split: SplitModel) -> None:
    """A written guide draws common latents in the model's shape. Raises ConfigurationError."""
    for name in split.latents.keys() & guide_sites.keys() & model_sites.keys():
        (own, drawn), (axes, drawn_axes) = zip(
            *((s[name]["fn"].shape(), s[name]["fn"].event_dim) for s in (model_sites, guide_sites))
        )
        if (own, axes) != (drawn, drawn_axes):
            event = f".to_event({axes})" if axes else " without to_event"
            raise ConfigurationError(
                f"the guide draws site '{name}' in shape {drawn} with {drawn_axes} event axes, the model in shape {own} with "
                f"{axes}; write dist.Normal(numpyro.param('{name}_loc', jnp.zeros({own})), 1.0){event}."
            )


def start_at_median(guide: object) -> None:
    """Let an AutoGuide whose start nobody chose begin at the prior's median: NumPyro's own default is uniform draws."""
    for part in parts_of(guide):
        if isinstance(part, autoguide.AutoGuide) and getattr(part, "init_loc_fn", None) is init_to_uniform:
            part.init_loc_fn = init_to_median


_WITHOUT_VALUES = (init_to_feasible, init_to_mean, init_to_median, init_to_sample, init_to_uniform)


def start_of(guide: object) -> Start:
    """Where a guide's first parameters come from."""
    return Start.GUIDE if all(_strategy(part) in _WITHOUT_VALUES for part in parts_of(guide)) else Start.SUPPLIED


def _strategy(part: object) -> object:
    """NumPyro's function that a part of a guide starts by, without its settings; the prior's median of other guides."""
    strategy = getattr(part, "init_loc_fn", init_to_median)
    return getattr(strategy, "func", strategy)
