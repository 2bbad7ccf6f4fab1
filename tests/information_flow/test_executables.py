"""Compiled programs that are kept: what they are shared by, and what they are not."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpppl.access.clipping import Flat
from dpppl.access.door import noisy_sum
from dpppl.access.mechanism import Mechanism
from dpppl.errors import PrivacyLeakError
from dpppl.information_flow import executables
from dpppl.information_flow.row_free import proved
from dpppl.randomness import chacha
from dpppl.runs import driver
from dpppl.subsampling import FullBatch, Poisson


@pytest.fixture(autouse=True)
def kept():
    """The programs that are kept, none at first."""
    executables.clear()
    return executables._kept


def prepare(power=2, centre=(0.5, 1.0), rows=8, dtype=np.float32, subsampling=None, norm=1.0, key=0):
    """A proved program of one access, of a model with a static value and an array that it captured; and its arguments."""
    mechanism, centre = Mechanism(clipping=Flat(norm), subsampling=subsampling or FullBatch()), np.array(centre, dtype)
    log_likelihood = lambda z, row, _: -jnp.sum(jnp.abs(z - centre * row) ** power)  # noqa: E731

    def program(z, rows, key):
        return noisy_sum(mechanism, log_likelihood, z, rows, {}, key=key, noise_multiplier=1e-3).total

    secret = chacha.wrap(np.arange(8, dtype=np.uint32) + np.uint32(key))
    arguments = np.zeros(2, dtype), np.arange(2.0 * rows, dtype=dtype).reshape(rows, 2) + key, secret
    return driver.prepare(program, arguments, rows=1), arguments


def test_runs_of_the_same_shapes_share_a_program_whatever_their_data_and_keys(kept):
    (first, given), (second, others) = prepare(), prepare(key=1)
    assert second.call is first.call and len(kept) == 1
    assert np.any(first(*given) != second(*others))
    np.testing.assert_array_equal(first(*others), second(*others))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "changed",
    [
        {"power": 4}, {"centre": (0.5, 1.5)}, {"rows": 9}, {"dtype": np.float16}, {"norm": 2.0}, {"subsampling": Poisson(0.5)},
    ],
    ids=lambda changed: next(iter(changed)),
)  # fmt: skip
def test_another_model_shape_or_setting_is_another_program(changed, kept):
    (before, _), (after, _) = prepare(), prepare(**changed)
    assert after.call is not before.call and after.digest != before.digest and len(kept) == 2


def test_models_that_differ_in_an_array_they_captured_keep_their_own():
    (one, given), (other, _) = prepare(), prepare(centre=(-0.5, 1.0))
    assert one(*given)[0] > 0.5 and other(*given)[0] < -0.5  # the sum of clipped gradients has the centre's sign
    assert one(*given)[0] > 0.5


def test_settings_of_jax_tell_programs_apart(kept):
    numbers = np.ones(3, np.float32)
    executables.run_once(jnp.sin, numbers)
    with jax.enable_x64(True):
        executables.run_once(jnp.sin, numbers)
    with jax.default_device(jax.devices()[1]):
        executables.run_once(jnp.sin, numbers)
    executables.run_once(jnp.sin, jax.device_put(numbers, jax.devices()[1]))
    assert len(kept) == 4


def lowered(function):
    """How many programs JAX lowered for this one."""
    count = []
    listen = lambda event, *_, **__: count.append(event) if event.endswith("jaxpr_to_mlir_module_duration") else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    executables.run_once(function, np.float32(0.5))
    jax.monitoring.clear_event_listeners()
    return len(count)


def of(slope):
    """|x| with this slope at 0, and its derivative."""
    absolute = jax.custom_jvp(lambda x: jnp.abs(x))
    absolute.defjvp(lambda given, tangents: (jnp.abs(given[0]), slope * tangents[0]))
    return absolute, jax.grad(absolute)


def test_equal_programs_are_lowered_once():
    """Whoever wrote them: rules of derivatives that a program does not use do not count."""
    centre = np.arange(3.0)
    for make in (
        lambda: lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x + centre.sum()), x),
        lambda: of(1.0)[0],
    ):
        assert lowered(make()) == 1 and lowered(make()) == 0
    executables.clear()
    assert lowered(of(1.0)[0]) == 1


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda x: x + 0.0, lambda x: x + -0.0), (lambda x: x + 1.0, lambda x: x + np.float64(1.0)),
        (lambda x: x - 1.0, lambda x: 1.0 - x), (lambda x: x**2, lambda x: x**3), (of(1.0)[1], of(2.0)[1]),
        (lambda x: x + np.arange(2.0), lambda x: x + np.arange(2.0)[::-1]), (lambda x: (x, -x), lambda x: (-x, x)),
        (lambda x: jax.lax.map(jnp.sin, x[None]), lambda x: jax.lax.map(jnp.cos, x[None])),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, x: 2 * x, x), lambda x: jax.lax.fori_loop(0, 4, lambda _, x: 2 * x, x)),
        (lambda x: jnp.clip(x, max=np.inf), lambda x: jnp.clip(x, max=np.nan)), (lambda x: x > 0.0, lambda x: x >= 0.0),
    ],
)  # fmt: skip
def test_other_programs_are_lowered_by_themselves(one, other):
    with jax.enable_x64(True):
        number = np.float32(0.5)
        expected, found = (
            [jax.jit(f)(number) for f in (one, other)],
            [executables.run_once(f, number) for f in (one, other)],
        )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_is_kept_is_proved_again(kept):
    """A program that returns rows, compiled elsewhere, is not admitted because its text is known."""
    rows = np.ones((8, 2), np.float32)
    executables.compiled(lambda rows: rows + 1.0, rows)
    with pytest.raises(PrivacyLeakError, match="outside the door"):
        driver.prepare(lambda rows: rows + 1.0, (rows,), rows=0)
    assert len(kept) == 1


def test_programs_that_captured_a_key_are_not_kept(kept):
    key = jax.random.key(7)
    drawn = executables.run_once(lambda x: x + jax.random.normal(key), np.float32(1.0))
    assert drawn == 1.0 + jax.random.normal(key) and not kept


def test_those_that_were_used_last_are_kept(kept, monkeypatch):
    monkeypatch.setattr(executables, "MOST", 2)
    for function in (jnp.sin, jnp.cos, jnp.sin, jnp.tan):
        executables.run_once(function, np.ones(3, np.float32))
    programs = list(kept.values())
    executables.run_once(jnp.sin, np.ones(3, np.float32))
    assert len(kept) == 2 and list(kept.values()) == programs[::-1]


def test_what_was_proved_runs_compiled_and_inside_other_programs(kept):
    double = proved(lambda x: {"twice": 2.0 * x}, np.ones(3, np.float32), num_rows=7)
    given = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(double(given)["twice"], 2.0 * given)
    assert len(kept) == 1
    np.testing.assert_array_equal(jax.jit(double)(given)["twice"], 2.0 * given)
    assert len(kept) == 1


CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@pytest.mark.skipif(CPUS < 2 or not executables._STEPS, reason="needs several CPUs, and a jaxlib that is known")
def test_no_operation_of_a_short_step_wakes_another_thread():
    arguments = np.zeros((20_000, 100), np.float32), np.zeros(200, np.int32)
    step = executables.Lowered(jax.make_jaxpr(lambda x, index: x[index])(*arguments), arguments)
    programs = step.compiled(), step._lowered.compile()  # with the options of steps, and with those of XLA
    divided = [program.as_text().count('outer_dimension_partitions":["') for program in programs]
    assert divided[0] == 0 < divided[1]
