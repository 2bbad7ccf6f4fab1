"""The result of an audit: numbers and a table."""

from dataclasses import dataclass, field

from dpppl import accounting
from dpppl.accounting.tradeoff import TradeOff
from dpppl.report import render


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The result of an audit. `consistent` is False only if the account is refuted.

    - **epsilon_lower** - lower bound on epsilon, true with probability `confidence`.
    - **epsilon_reported** - what the account says for the same accesses.
    - **epsilon_strongest** - the lower bound of an attack that is never wrong, at that many runs or canaries. No attack can show
      more, so a low bound next to a low `epsilon_strongest` says little.
    - **delta** - of all three.
    - **confidence** - probability that the bound is true.
    - **num_trials** - runs that were attacked.
    - **num_canaries** - canaries of each run.
    - **attack** - name of the attack.
    - **audited** - name of the method.
    - **events** - what was accounted.
    - **points** - pairs (false positive rate, true positive rate) of the attack, by its threshold.

    >>> AuditResult(
    ...     epsilon_lower=0.7, epsilon_reported=1.0, epsilon_strongest=5.0, delta=1e-5, confidence=0.99, num_trials=1_000,
    ...     num_canaries=1, attack="white_box", audited="DPSGLD", events=(), points=()
    ... ).consistent
    True
    """

    epsilon_lower: float
    epsilon_reported: float
    epsilon_strongest: float
    delta: float
    confidence: float
    num_trials: int
    num_canaries: int
    attack: str
    audited: str
    events: tuple[object, ...] = field(repr=False)
    points: tuple[tuple[float, float], ...] = field(repr=False)

    @property
    def consistent(self) -> bool:
        """Whether the lower bound stays below what is reported."""
        return self.epsilon_lower <= self.epsilon_reported

    @property
    def curve(self) -> TradeOff:
        """The account's trade-off curve, which no attack's points cross but by chance."""
        return accounting.trade_off(self.events)

    @property
    def headline(self) -> str:
        """The finding, in a sentence."""
        verdict = "consistent" if self.consistent else "REFUTED"
        lower, reported = f"{self.epsilon_lower:.4g} at delta {self.delta:g}", f"{self.epsilon_reported:.4g}"
        return f"{verdict}: epsilon is at least {lower}; the account says {reported}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The table: names and texts."""
        size = f"{self.num_trials:,} runs" if self.num_canaries == 1 else f"1 run with {self.num_canaries:,} canaries"
        return [
            ("method", self.audited),
            ("attack", f"{self.attack}, {size}"),
            ("lower bound", f"epsilon {self.epsilon_lower:.4g}, true with probability {self.confidence:g}"),
            ("account", f"epsilon {self.epsilon_reported:.4g} at delta {self.delta:g}"),
            ("strongest bound", f"epsilon {self.epsilon_strongest:.4g}, of an attack that is never wrong"),
            ("reading", "an audit can refute an account and never prove one"),
        ]

    def __str__(self) -> str:
        return "\n".join([self.headline, *render.table(self.rows)])
