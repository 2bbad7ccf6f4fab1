"""What is no array of numbers is refused, by every method, and nothing that a failure leaves behind holds a value of it."""

import inspect

import numpy as np
import pandas as pd
import pytest
import wrong_inputs
from wrong_inputs import (
    LISTS,
    METHODS,
    MISPLACED,
    NUMBER,
    PLACES,
    QUERIES,
    TEXT,
    WRONG,
    N,
    call,
    failures,
    marks_in,
    misplaced,
    queries,
    x,
)

import dpppl
from dpppl.contrib import cli

PUBLIC = (
    "one string in a list",
    "an enum",
    "a dict by name",
    "a data class",
    "a function",
    "a long string",
    "a layer",
)


def assert_ours(failure):
    """Refused by an error of ours, and nothing that the failure leaves behind holds a value."""
    assert failure.is_ours and failure.marks == [], failure.error


@pytest.mark.quick_cases(9)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_refused_before_anything_is_charged(name, method):
    [(_, _, failure)] = failures({name: WRONG[name]}, {method: METHODS[method]})
    assert_ours(failure)
    assert failure.held.budget.charged == ()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", METHODS)
def test_num_data_is_the_number_of_rows(method):
    """Too few, too many: refused before anything is charged; the right number is not asked about."""
    for declared in (100, N - 1, N + 1):
        runner, run = METHODS[method](num_data=declared)
        failure = call(run, x(), np.zeros(N), held=runner)
        assert failure.is_ours and f"num_data={N}" in str(failure.error) and runner.budget.charged == ()


@pytest.mark.quick_cases(20)
@pytest.mark.parametrize("what", MISPLACED)
@pytest.mark.parametrize("where", PLACES)
def test_a_value_where_none_belongs_is_refused(where, what):
    """As a key, a setting, a model, a path, ids. Names of sites that clipping norms are given for are told."""
    if (where, what) != ("clipping_norm", "a dict"):
        assert_ours(call(misplaced(MISPLACED[what]())[where]))


@pytest.mark.parametrize(
    "value", [f"['{TEXT}', '{TEXT}']", f"{{'{TEXT}': {NUMBER}}}", TEXT, f"'{TEXT}' * 9", f"b'{TEXT}'"]
)
def test_the_command_line_refuses_the_same(value, tmp_path, capsys):
    file = tmp_path / "models.py"
    file.write_text(
        inspect.getsource(wrong_inputs.model).join(("import numpyro\nimport numpyro.distributions as dist\n", ""))
    )
    failure = call(cli.main, ["verify", f"{file}:model", "--argument", "x=float32[9]", "--argument", f"y={value}"])
    printed = "".join(capsys.readouterr()) + failure.text
    assert "ConfigurationError" in printed and failure.error is None and not wrong_inputs.MARKS.search(printed)


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_refuses_the_same(query):
    """Each wrong input as an argument of what looks at rows, also where rows have ids."""
    for wrong in WRONG.values():
        assert_ours(call(queries()[query], x(), wrong(N)))


def test_the_search_finds_marks():
    """In a message, its causes, notes, attributes and locals: as they were before errors forgot."""

    def convert(values):
        try:
            return np.asarray(values, float)
        except ValueError as error:
            raise dpppl.ConfigurationError("no value here") from error

    for act in (lambda: float(TEXT), lambda: {}[NUMBER], lambda: convert([TEXT]), lambda: pd.Series([TEXT]).missing):
        assert call(act).marks
    error = ValueError("noted")
    error.add_note(TEXT)
    assert marks_in(error)
    namespace = {}
    exec(compile("def fails(values):\n    raise ValueError('locals')", "library.py", "exec"), namespace)
    assert (
        call(namespace["fails"], [NUMBER]).marks
        and not call(dpppl.errors.forgetting(namespace["fails"]), [NUMBER]).marks
    )


def test_lists_with_an_entry_a_row_are_numbers_whatever_they_hold():
    """What is no number is missing: no entry decides whether a list is taken, or its type."""
    for name, make in LISTS.items():
        arguments = dpppl.model.arguments.Arguments.of(wrong_inputs.model, (x(), make(N)), {})
        rows, _ = arguments.arrays(wrong_inputs.model, (x(), make(N)), {})
        numbers = np.array([each if isinstance(each, float) else np.nan for each in make(N)], np.float32)
        known = np.isfinite(numbers)
        assert rows["y"].dtype == np.float32 and np.array_equal(np.asarray(rows["y"])[known], numbers[known]), name
        assert np.all(np.isfinite(rows["y"]) == known) or "decimal" in name or "fraction" in name or "JAX" in name, name


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_refused_may_be_marked_public(name):
    """The remedy of the refusal runs, and the report names the argument and its type."""
    arguments = dpppl.model.arguments.Arguments.of(
        wrong_inputs.model, (x(), np.zeros(N)), {"z": dpppl.Public(WRONG[name](N))}
    )
    (line,) = arguments.assumed_public
    assert line.startswith("argument 'z' (") and TEXT not in line and str(NUMBER) not in line


CURES = {
    "a range": lambda y: np.array(list(y), float),
    "a dict by name": lambda y: np.array(list(y.values()), float),
    "a dict of arrays by name": lambda y: np.stack(list(y.values())),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", CURES)
def test_the_cure_of_a_refusal_makes_private_rows(name):
    """The line of code that the message gives, of y, is an array that is taken."""
    y = WRONG[name](N)
    message = str(call(METHODS["NoiseAware"]()[1], x(), y).error)
    written = inspect.getsource(CURES[name]).partition("lambda y: ")[2].rstrip(",\n").replace('"', "'")
    assert written.replace("np.", "numpy.") in message
    assert list(dpppl.model.arguments.Arguments.of(wrong_inputs.model, (x(), CURES[name](y)), {}).rows) == ["x", "y"]


MUTANTS = {
    "dpppl.model.public_values.check_marked": (
        ["a date", "a decimal", "a fraction"],
        None,
    ),
    "dpppl.model.public_values.check_nesting": (["a dict of arrays of unlike lengths by name"], "message"),
    "dpppl.errors._forget": (["an array-like that fails", "an array of strings"], "of "),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_a_check_the_search_finds_values(mutant, monkeypatch):
    """As the library was before each of them; without a mark, lists go on to a refusal that names no argument."""
    monkeypatch.setattr(mutant, lambda *_, **__: None)
    names, where = MUTANTS[mutant]
    seen = list(failures({name: WRONG[name] for name in names}, {"NoiseAware": METHODS["NoiseAware"]}))
    assert {name for name, *_ in seen} == set(names)
    for name, _, failure in seen:
        found = any(where in mark for mark in failure.marks) if where else "argument 'y'" not in str(failure.error)
        assert found, name
