"""What processes tell each other: two of them as threads, with a store of keys and values between them."""

import itertools
import threading

import jax
import numpy as np
import pytest

from dpppl.errors import BudgetExceededError, ConfigurationError, ProcessError
from dpppl.processes import messages
from dpppl.runs.budget import Budget
from dpppl.runs.processes import ProcessGroup


class Store:
    """As JAX's coordinator has it."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, timeout):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, 2.0):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]

    def key_value_delete(self, prefix):
        with self.changed:
            self.values = {key: value for key, value in self.values.items() if not key.startswith(prefix)}


def both(*functions):
    """What these two functions, run by processes 0 and 1, return or raise."""
    here, store, found = threading.local(), Store(), [None, None]

    class Numbers:
        def __next__(self):
            return next(here.numbers)

    def process(index):
        here.index, here.numbers = index, itertools.count()
        try:
            found[index] = functions[index]()
        except Exception as error:
            found[index] = error

    patched = dict(
        index=lambda: getattr(here, "index", 0), count=lambda: 2, _client=lambda: store, _numbers=Numbers(), TIMEOUT=1
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in patched.items():
            patch.setattr(messages, name, value)
        threads = [threading.Thread(target=process, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def test_nobody_acts_before_process_0_has():
    acted, seen = threading.Event(), []
    first = lambda: messages.enter("charge", lambda: seen.append(acted.wait(0.3)))  # noqa: E731
    second = lambda: messages.enter("charge", acted.set)  # noqa: E731
    both(first, second)
    assert seen == [False] and acted.is_set()


def test_process_0_acts_after_all_have_come():
    came, seen = threading.Event(), []
    second = lambda: (came.wait(0.3), seen.append("came"), messages.enter("charge", int))  # noqa: E731
    both(lambda: messages.enter("charge", lambda: seen.append("charged")), second)
    assert seen == ["came", "charged"]


def test_what_process_0_refuses_all_raise():
    def refuse():
        raise BudgetExceededError("it is spent")

    acted = []
    first, second = both(
        lambda: messages.enter("charge", refuse), lambda: messages.enter("charge", lambda: acted.append(1))
    )
    assert type(first) is type(second) is BudgetExceededError and str(first) == str(second) == "it is spent"
    assert not acted


def test_a_process_that_fails_tells_the_others():
    def failing():
        with messages.watched():
            raise KeyError("a secret")

    charged = []
    first, second = both(lambda: messages.enter("charge", lambda: charged.append(1)), failing)
    assert isinstance(first, ProcessError) and "process 1 was ended by KeyError" in str(first)
    assert "secret" not in str(first) and isinstance(second, KeyError) and not charged


def test_processes_that_do_different_things():
    first, second = both(lambda: messages.from_first("ledger", int), lambda: messages.from_first("checkpoint", int))
    assert first == 0 and "is at 'checkpoint' and process 0 at 'ledger'" in str(second)
    _, second = both(int, lambda: messages.from_first("never", int))
    assert isinstance(second, ProcessError)


@pytest.mark.parametrize("differing", ["key", "program", "settings", "public arrays"])
def test_what_differs_is_named(differing):
    together = ProcessGroup(True, Budget())

    def process(index):
        other = lambda name, value: value if name != differing else value + index  # noqa: E731
        key, settings = jax.random.key(other("key", 3)), {"settings": other("settings", 1.5)}
        arrays = other("public arrays", np.arange(3.0))
        return lambda: together.agree(key, str(other("program", 7)), **settings, public_arrays=arrays)

    found = both(process(0), process(1))
    assert all(isinstance(error, ConfigurationError) for error in found) and str(found[0]) == str(found[1])
    assert f"processes 0 and 1 differ in: {differing}." in str(found[0])
    assert both(process(0), process(0)) == [None, None]
