"""Axes to draw on, and colours that the colour-blind tell apart (Okabe and Ito's)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpppl.errors import ConfigurationError
from dpppl.validation import a

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, SKY, GREY = "#0072B2", "#E69F00", "#56B4E9", "#7F7F7F"
STYLES = ((BLUE, "o", "-"), (ORANGE, "s", "--"), (GREY, "^", "-."), (SKY, "D", ":"))


def check_parts(value: object, parts: Sequence[str], name: str, cure: str) -> None:
    """Raise ConfigurationError for an object of another kind, which lacks some of these attributes."""
    if not all(hasattr(value, part) for part in parts):
        raise ConfigurationError(f"{name} is {a(type(value).__name__)}; give {cure}.")


def new_axes(axes: "Axes | None", **size: Any) -> "Axes":
    """The axes given, or those of a new figure."""
    if axes is not None:
        if not hasattr(axes, "plot"):
            raise ConfigurationError(
                f"axes must be matplotlib's Axes, got {a(type(axes).__name__)}; give plt.subplots()[1]."
            )
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ConfigurationError('pictures need matplotlib: pip install "dpppl[plot]".') from None
    return plt.subplots(layout="constrained", **size)[1]
