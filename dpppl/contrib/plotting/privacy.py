"""Pictures of what privacy costs: in accuracy, in width of intervals, and of a budget."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpppl.accounting import Plan
from dpppl.contrib.plotting.axes import BLUE, GREY, ORANGE, SKY, check_parts, new_axes
from dpppl.errors import ConfigurationError
from dpppl.ledger.privacy_ledger import PrivacyLedger
from dpppl.validation import checked

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked
def plan_picture(plan: Plan, *, axes: "Axes | None" = None) -> "Axes":
    """Widths of honest 90 % intervals by the curvature of a row's log likelihood, for the best option of each kind.

    - **plan**: what `dpppl.accounting.plan(...)` returns.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    A square marks where the data begin to outweigh the noise, a triangle where a chain explores; the dotted line is the curvature
    planned for. Returns the Axes.

    >>> from dpppl import accounting
    >>> axes = plan_picture(accounting.plan(num_data=1000, target_epsilon=1.0, target_delta=1e-6, rates=(1.0,)))
    >>> axes.get_xscale()
    'log'
    """
    axes = new_axes(axes, figsize=(6.0, 4.0))
    curvatures = plan.row_curvature * 10.0 ** np.linspace(-4, 2, 121)
    axes.plot(curvatures, [plan.width_at(c) for c in curvatures], color="black", linewidth=1.2, label="without privacy")
    kinds = (("NoiseAware", BLUE, "-"), ("SVI", ORANGE, "--"), ("DPSGLD", SKY, "-."))
    for method, colour, style in kinds:
        option = next((o for o in plan.options if o.method == method), None)
        if option is None:
            continue
        label = f"{method}, rate {option.rate:g}, {option.num_steps} steps"
        axes.plot(curvatures, [plan.width_at(c, option) for c in curvatures], color=colour, ls=style, label=label)
        for place, marker in ((option.learned_above, "s"), (option.explored_above, "^")):
            if place is not None and curvatures[0] <= place <= curvatures[-1]:
                axes.plot(place, plan.width_at(place, option), color=colour, marker=marker, markersize=7, linestyle="")
    axes.axvline(plan.row_curvature, color=GREY, linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="curvature of one row", ylabel="width of a 90 % interval")
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    return axes


@checked
def budget_spent(ledger: PrivacyLedger, *, axes: "Axes | None" = None) -> "Axes":
    """Draw each run's cost alone, the cost of all runs together, and the budget of a ledger.

    - **ledger**: as `dpppl.PrivacyLedger.open(path)` gives it; only its file is read.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    The line is epsilon at the ledger's delta of all charges up to and with a run, as one plan made in advance: for information,
    the guarantee is the budget. Returns the Axes. Raises ConfigurationError where nothing was charged.

    >>> import tempfile, dpppl
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = dpppl.PrivacyLedger(folder.name + "/data.ledger", epsilon=2.0, delta=1e-6)
    >>> try:
    ...     budget_spent(ledger)
    ... except dpppl.ConfigurationError as error:
    ...     print(error)
    there is nothing to draw: nothing was charged to this ledger.
    >>> folder.cleanup()
    """
    from dpppl import accounting

    report = ledger.report()
    runs = [run for run in report.runs if run.num_accesses]
    if not runs:
        raise ConfigurationError("there is nothing to draw: nothing was charged to this ledger.")
    charged = [ledger.events_of(run.run_id) for run in runs]
    total = [
        accounting.epsilon([event for events in charged[: i + 1] for event in events], report.delta)
        for i in range(len(runs))
    ]
    axes, places = new_axes(axes, figsize=(6.0, 3.6)), np.arange(len(runs))
    axes.bar(places, [run.epsilon for run in runs], color=SKY, edgecolor=BLUE, hatch="//", label="this run alone")
    axes.plot(places, total, color=ORANGE, marker="o", label="all so far")
    axes.axhline(report.epsilon, color="black", linestyle="--", label=f"budget {report.epsilon:g}")
    axes.set_xticks(places, [run.what for run in runs], rotation=30, ha="right", fontsize="small")
    axes.set_ylabel(f"epsilon at delta {report.delta:g}")
    axes.set_ylim(bottom=0.0)
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    return axes


@checked
def attack_picture(result: Any, *, axes: "Axes | None" = None) -> "Axes":
    """Rates of an attack by its threshold, and the trade-off curve of the account that they stay under.

    - **result**: of `dpppl.contrib.audit.audit`.
    - **axes**: matplotlib's Axes to draw on, or None for new ones.

    Returns the Axes. Rates are measured, so points cross a tight curve by chance: `result.consistent` counts that.

    >>> from types import SimpleNamespace
    >>> from dpppl import accounting
    >>> curve = accounting.trade_off(accounting.GaussianEvent(noise_multipliers=((10.0, 100),)))
    >>> attack_picture(SimpleNamespace(curve=curve, points=[(0.1, 0.3)], attack="white_box")).get_xlabel()
    'false positive rate'
    """
    check_parts(result, ("curve", "points", "attack"), "result", "what dpppl.contrib.audit.audit(...) returns")
    axes, rates = new_axes(axes, figsize=(4.5, 4.0)), np.linspace(0.0, 1.0, 201)
    axes.plot(rates, 1.0 - result.curve.false_negative_rate(rates), color=BLUE, label="account")
    axes.plot(
        *zip(*result.points), color=ORANGE, marker="o", markersize=3, linestyle="", label=f"attack: {result.attack}"
    )
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="guessing")
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(loc="upper left", frameon=False, fontsize="small")
    return axes
