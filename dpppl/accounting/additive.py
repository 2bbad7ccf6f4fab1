"""Costs that add up over accesses, also where later accesses are chosen by earlier answers: Renyi divergence and mu^2."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpppl.accounting.dp_events import Events, as_events, to_dp_event
from dpppl.accounting.events import GaussianEvent, gaussian_mu, without_noise
from dpppl.accounting.selection import SelectionEvent
from dpppl.errors import ConfigurationError
from dpppl.validation import checked

Array = NDArray[np.float64]


@checked
def rdp(events: Events, orders: ArrayLike, *, neighboring_relation: str | None = None) -> Array:
    """Upper bound on the Renyi divergence of all accesses together at each of `orders` (n,), all above 1: shape (n,).

    Zeros for no events, inf for an access without noise. Divergences of further accesses add to these, however they
    were chosen (Feldman, Zrnic 2021, for an order that was fixed beforehand). Discrete noise in random batches is
    bounded at whole orders only. `neighboring_relation` is that of DpEvents, as for `accounting.epsilon`.

    Guarantee: an upper bound in either direction of the events' relation, rounding included. Under "replace_one" a full
    batch moves by twice the sensitivity; for Poisson batches it is, by way of the data without the row,
    (a - 1/2)/(a - 1) D(2a) + D(2a - 1) with D the divergences of zeroing out (Mironov 2017, proposition 11).
    Failure probabilities are not in it.

    Raises ConfigurationError for an order that is not finite and above 1, or not whole with discrete noise in random
    batches, for batches without replacement under another relation than "replace_one", and for these with discrete noise.

    References: Mironov, Talwar, Zhang 2019 (Poisson); Wang, Balle, Kasiviswanathan 2019 (fixed-size batches).

    >>> rdp(GaussianEvent(noise_multipliers=((10.0, 100),)), [2, 8]).round(6)
    array([1., 4.])
    """
    try:
        alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    except (TypeError, ValueError):
        raise ConfigurationError("orders must be numbers above 1, such as [2.0, 8.0].") from None
    if not np.all(np.isfinite(alpha) & (alpha > 1)):
        raise ConfigurationError("orders must be finite, each above 1.")
    accesses = as_events(events, neighboring_relation)
    check_scheme(accesses)
    if any(e.discrete and not e.is_full_batch for e in accesses) and np.any(alpha != np.round(alpha)):
        raise ConfigurationError(
            "discrete noise in random batches is accounted at whole orders only; leave fractional orders out."
        )
    if without_noise(accesses):
        return np.full(alpha.shape, np.inf)
    selections = [e for e in accesses if isinstance(e, SelectionEvent)]
    if selections:
        rest = rdp([e for e in accesses if e not in selections], alpha)
        return np.asarray(rest + np.sum([_selected(e, alpha) for e in selections], axis=0))
    poisson = (e for e in accesses if not e.is_full_batch and e.batch_size is None)
    replacing = [e for e in poisson if e.neighboring_relation == "replace_one"]
    total = _divergences([e for e in accesses if e not in replacing], alpha)
    if replacing:
        halves = [dataclasses.replace(e, neighboring_relation="zero_out") for e in replacing]
        out, back = np.split(_divergences(halves, np.concatenate([2 * alpha, 2 * alpha - 1])), 2)
        total += (alpha - 0.5) / (alpha - 1) * out + back
    return total


@checked
def gaussian_mu_squared(events: Events, *, neighboring_relation: str | None = None) -> float:
    """mu^2 of the Gaussian differential privacy of full-batch accesses together: exact, and it adds up.

    Under "replace_one" it is four times the sum over accesses of (clipping norm / noise std)^2, else that sum.
    `neighboring_relation` is that of dp_accounting's DpEvents (default "zero_out").

    Raises ConfigurationError for random batches and for discrete noise, of which it is no bound.
    Reference: Dong, Roth, Su 2022, corollary 3.3.

    >>> gaussian_mu_squared(GaussianEvent(noise_multipliers=((10.0, 100),), neighboring_relation="replace_one"))
    4.0
    """
    accesses = as_events(events, neighboring_relation)
    if any(e.discrete or not e.is_full_batch for e in accesses):
        raise ConfigurationError(
            "mu^2 is for accesses to every row with continuous noise; use rdp for random batches and discrete noise."
        )
    return max((e.sensitivity for e in accesses), default=1.0) ** 2 * gaussian_mu(accesses) ** 2


def check_scheme(events: Sequence[GaussianEvent]) -> None:
    """Raise ConfigurationError for batches without replacement where no accountant knows them."""
    fixed_size = [e for e in events if not e.is_full_batch and e.batch_size is not None]
    if any(e.neighboring_relation != "replace_one" for e in fixed_size):
        raise ConfigurationError(
            "batches drawn without replacement are accounted under neighboring_relation='replace_one' only; "
            "use it, or Poisson sampling."
        )
    if fixed_size and any(e.discrete for e in events):
        raise ConfigurationError(
            "discrete noise is not accounted for batches drawn without replacement; use Poisson sampling."
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence dp_accounting's remarks on RDP orders it leaves out: the minimum over the others is still a bound."""
    logger = logging.getLogger("absl")
    disabled, logger.disabled = logger.disabled, True
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.disabled = disabled


def _with_less_noise(event: GaussianEvent) -> GaussianEvent:
    """Noise multipliers up to 1e6 where dp_accounting cannot tell more from no loss at all, and 1e100, whose square is finite."""
    most = 1e100 if event.is_full_batch or event.batch_size is None else 1e6
    pairs = tuple((min(sigma, most), count) for sigma, count in event.noise_multipliers)
    return dataclasses.replace(event, noise_multipliers=pairs)


def _divergences(events: Sequence[GaussianEvent], alpha: Array) -> Array:
    """dp_accounting's divergences, with room for rounding."""
    from dp_accounting import NeighboringRelation
    from dp_accounting import rdp as theirs

    if not events:
        return np.zeros(alpha.shape)
    replace_one = events[0].neighboring_relation == "replace_one"
    relation = NeighboringRelation.REPLACE_ONE if replace_one else NeighboringRelation.REPLACE_SPECIAL
    ledger = theirs.RdpAccountant(alpha, relation)
    with quiet():
        # dp_accounting's RDP takes noise / sensitivity whatever the relation, and replacing a row moves the sum by 2C.
        ledger.compose(to_dp_event([_with_less_noise(e) for e in events], divisor=events[0].sensitivity))
        # It answers 0 where rounding leaves no divergence: add what rounding can hide. Its series for fractional orders
        # ends at terms below e^-30 of the sum.
        spread = np.minimum(1, alpha * max(e.sampling_rate for e in events)) * alpha * np.log(alpha)
        hidden = np.where(alpha == np.round(alpha), 1e-14, 2e-13) + 1e-15 * spread
        if any(e.batch_size is not None for e in events):
            hidden = hidden + 1e-15 * alpha**2
        accesses = sum(e.num_accesses for e in events)
        divergences: Array = np.maximum(ledger.rdp, 0) + accesses * hidden / (alpha - 1)
    # The probabilities of a million discrete numbers are all right to a factor 1 +- 4e-13.
    divergences[np.isnan(divergences)] = np.inf  # of overflow: it would pass for no loss
    divergences += 1e-12 * alpha / (alpha - 1) * sum(e.num_accesses for e in events if e.discrete)
    return np.maximum(divergences, 2.0**-52)  # dp_accounting takes the logarithm of 1 - e^-divergence


def _selected(event: SelectionEvent, orders: Array) -> Array:
    """Upper bounds on the Renyi divergence of a selection at orders (n,), all above 1: shape (n,). See `selection`."""
    from dp_accounting import rdp as theirs

    alpha = np.unique([*orders, *theirs.rdp_privacy_accountant.DEFAULT_RDP_ORDERS])
    if event.discrete:
        alpha = np.unique([*orders, *range(2, 64), 128, 256, 512])
    one = np.max([rdp(candidate, alpha) for candidate in event.candidates], axis=0)
    more = math.log(event.mean) / (alpha - 1)
    if event.shape is None:
        with quiet():
            deltas = [
                theirs.rdp_privacy_accountant.compute_delta(alpha, one, math.log1p(1 / (a - 1)))[0] for a in alpha
            ]
        total = one + more + event.mean * np.array(deltas)
    else:
        total = one + more + (1 + event.shape) * np.min((1 - 1 / alpha) * one - math.log(event.gamma) / alpha)
    total = np.minimum.accumulate(total[::-1])[::-1]  # a divergence rises with its order
    return np.asarray(total[np.searchsorted(alpha, orders)])
