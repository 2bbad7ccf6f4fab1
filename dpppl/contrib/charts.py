"""Line charts as SVG text, for pages that load nothing."""

import html
import math
from collections.abc import Sequence

_LEFT, _TOP, _WIDTH, _HEIGHT = 58, 12, 400, 240

Ticks = Sequence[tuple[float, str]]


def line_chart(
    title: str,
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    axes: tuple[str, str],
    ticks: tuple[Ticks, Ticks],
) -> str:
    """Lines, each a CSS class, x and y, over what the ticks of the two axes span. Colours are left to the page."""
    (low_x, high_x), (low_y, high_y) = ((marks[0][0], marks[-1][0]) for marks in ticks)

    def at_x(value: float) -> float:
        return _LEFT + _WIDTH * (value - low_x) / (high_x - low_x)

    def at_y(value: float) -> float:
        return _TOP + _HEIGHT * (1 - (value - low_y) / (high_y - low_y))

    parts = [
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 24} {_TOP + _HEIGHT + 44}" role="img" aria-label="{html.escape(title)}">',
        f"<title>{html.escape(title)}</title>",
    ]
    for value, label in ticks[0]:
        x = at_x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{_TOP + _HEIGHT}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{html.escape(label)}</text>')
    for value, label in ticks[1]:
        y = at_y(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_LEFT + _WIDTH}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{html.escape(label)}</text>')
    for name, xs, ys in lines:
        points = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in zip(xs, ys))
        parts.append(f'<polyline class="{name}" points="{points}"/>')
    middle_x, middle_y = _LEFT + _WIDTH / 2, _TOP + _HEIGHT / 2
    parts.append(f'<text x="{middle_x}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{html.escape(axes[0])}</text>')
    turned = f'x="14" y="{middle_y}" transform="rotate(-90 14 {middle_y})" text-anchor="middle"'
    parts.append(f"<text {turned}>{html.escape(axes[1])}</text></svg>")
    return "".join(parts)


def rising_ticks(largest: float) -> Ticks:
    """Five steps from 0 to at least `largest`, each 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(largest / 5)) if largest > 0 else 1.0
    step = next(scale * power for scale in (1, 2, 5, 10) if 5 * scale * power >= largest * (1 - 1e-9))
    return [(i * step, f"{i * step:g}") for i in range(6)]
