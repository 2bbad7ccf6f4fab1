"""A run's progress bar: the phase, and the number of accesses made."""

from typing import Any

from tqdm.auto import tqdm

from dpppl.noise_aware.recipe import Ask
from dpppl.processes import messages

_PHASES = {
    "norm_bin": "scores' norms",
    "curvature_bin": "curvatures' norms",
    "curvature": "curvature",
    "gradient": "gradients",
    "sizes": "sizes of curvatures",
    "sides": "curvatures on both sides",
    "scalars": "scalars",
}


def bar(num_accesses: int, *, visible: bool) -> Any:
    """A bar for a number of accesses, to be used as a context; without a rate, as phases differ too much."""
    shape = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
    return tqdm(total=num_accesses, disable=not (visible and messages.leads()), desc="compiling", bar_format=shape)


def shown(ask: Ask, bar: Any) -> Ask:
    """`ask`, with each access on the bar: its kind and number alone, which are public."""

    def shown_ask(kind: str, at: Any, noise_multiplier: float, repeats: int = 1, **walk: Any) -> Any:
        bar.set_description(_PHASES.get(kind, kind))
        found = ask(kind, at, noise_multiplier, repeats, **walk)
        bar.update(repeats)
        return found

    return shown_ask
