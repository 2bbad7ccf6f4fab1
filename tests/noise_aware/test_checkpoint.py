"""A run of NoiseAware that is killed between accesses goes on: the same bits, and the price of one run."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from patches import run_through

import dpppl
from dpppl.errors import CheckpointError
from dpppl.noise_aware.binding import bind
from dpppl.runs.checkpoint import Checkpoint

Y = np.random.default_rng(1).normal(0.4, 1.0, 400).astype(np.float32)


def model(y, scale=2.0):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def noise_aware(checkpoint=None, ledger=None, of=model, **settings):
    settings = {"target_epsilon": 2.0, "target_delta": 1e-5, "num_samples": 50} | settings
    return dpppl.NoiseAware(of, checkpoint=checkpoint, ledger=ledger, print_cost=False, progress_bar=False, **settings)


class Killed(BaseException):
    pass


class Held(Exception):
    pass


def counted_calls(monkeypatch):
    """The programs that were called, and `calls.last`: the number of the call in which the run is killed, if any."""

    class Calls(list):
        last = 0

    found = Calls()

    def counted(call, program, *_):
        found.append(program)
        released = call()
        if len(found) == found.last:
            raise Killed  # the data were looked at, and nothing was saved
        return released

    run_through(monkeypatch, counted)
    return found


def found(private):
    return private.get_samples(allow_unconverged=True)["mu"], str(private.verdict), private.privacy_report().epsilon


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_bits_at_the_price_of_one(tmp_path, monkeypatch, claimed):
    """In its object and in another; the killed access is made again under its key, and is one access in the ledger, too."""
    calls, path, key = counted_calls(monkeypatch), tmp_path / "run.ckpt", dpppl.secret_key()
    alone, ledger = (dpppl.PrivacyLedger(tmp_path / name, 3.0, 1e-5) for name in ("alone", "ledger"))
    whole = noise_aware(ledger=alone)
    whole.run(key, Y)
    asked, accesses = len(calls), whole.privacy_report().num_accesses
    cut = noise_aware(path, ledger)
    for first, last in ((0, 1), (0, 3), (2, asked - 1)):
        calls.clear()
        claimed.clear()
        calls.last = last - first
        with pytest.raises(Killed):
            cut.run(key if first == 0 else dpppl.secret_key(), Y)
        assert path.stat().st_mode & 0o777 == 0o600
        spent = cut.privacy_report().num_accesses
        assert last <= spent < accesses
    calls.clear()
    claimed.clear()
    calls.last = 0
    again = noise_aware(path, ledger)
    again.run(dpppl.secret_key(), Y)
    assert len(calls) == 2 and not path.exists()
    np.testing.assert_array_equal(*(found(private)[0] for private in (again, whole)))
    assert found(again)[1:] == found(whole)[1:]
    assert again.privacy_report().num_accesses == accesses
    assert ledger.remaining() == alone.remaining()


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused_before_anything_is_charged(tmp_path, monkeypatch, claimed):
    calls, path = counted_calls(monkeypatch), tmp_path / "run.ckpt"
    calls.last = 3
    with pytest.raises(Killed):
        noise_aware(path).run(dpppl.secret_key(), Y)
    kept, used = path.read_bytes(), set(claimed)
    changed = np.where(np.arange(len(Y)) == 7, 0.0, Y).astype(np.float32)
    others = {"rows": ({}, (changed,)), "prior": ({}, (Y, 3.0)), "bound": ({"clipping_norm": 2.0}, (Y,))}
    for settings, arguments in others.values():
        other = noise_aware(path, **settings)
        with pytest.raises(CheckpointError, match="of another run"):
            other.run(dpppl.secret_key(), *arguments)
        assert not other.budget.charged and path.read_bytes() == kept and claimed == used


SHIFT = np.zeros(2, np.float32)
OTHERS = {
    "settings": ({"target_epsilon": 10.0}, {"target_delta": 1e-6}, {"width": "sandwich"}, {"clipping_norm": 2.0}),
    "arguments": (
        {"y": np.where(np.arange(len(Y)) == 7, 0.0, Y).astype(np.float32)}, {"scale": 3.0}, {"shift": SHIFT + 1.0},
    ),
}  # fmt: skip


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_holds_all_that_decides_what_an_access_costs_and_means(others, tmp_path, monkeypatch, claimed):
    """Releases of a large epsilon would be charged at a small one. No program is compiled for this."""
    path, hold = tmp_path / "run.ckpt", Checkpoint.hold

    def held(self, *arguments):
        hold(self, *arguments)
        self.write([])
        raise Held

    def shifted(y, scale, shift):
        model(y - shift.sum(), scale)

    def run(y=Y, scale=2.0, shift=SHIFT, **settings):
        private = noise_aware(path, of=shifted, **settings)
        try:
            private.run(dpppl.secret_key(), y, scale, dpppl.Public(shift))
        finally:
            assert not private.budget.charged and not claimed

    if others is OTHERS["settings"]:
        first = functools.lru_cache(maxsize=1)(
            lambda: bind(noise_aware(of=shifted), (Y, 2.0, dpppl.Public(SHIFT)), {}, dpppl.secret_key())
        )
        monkeypatch.setattr("dpppl.noise_aware.runner.bind", lambda *_: first())
    monkeypatch.setattr("dpppl.noise_aware.runner.prepared", lambda *_: {})
    monkeypatch.setattr(Checkpoint, "hold", held)
    for _ in range(2):  # the same run may go on
        with pytest.raises(Held):
            run()
    kept = path.read_bytes()
    for other in others:
        with pytest.raises(CheckpointError, match="of another run"):
            run(**other)
        assert path.read_bytes() == kept
