"""Small faults planted in the code that a guarantee rests on, one at a time: those that no quick test kills.

    python benchmarks/privacy/mutants.py --state FOLDER [--files dpppl/ledger ...] [--share 0.3] [--most 8] [--minutes 60] [--again]

A process imports all tests once and forks for each mutant: the child puts the changed code into the function and runs the quick
tests that reach the changed line, the fastest first. So a mutant takes a second or two. FOLDER keeps what was recorded of the
tests and each verdict; the same command goes on where it stopped. `--again` repeats mutants that survived.

Faults are cosmic-ray's (comparisons, arithmetic, numbers, booleans, loops, exceptions) and those of `own`: conditions that always or
never hold; operands, elements, arguments and statements left out; the smaller for the larger. Texts of messages and reports, types,
decorators and defaults of arguments stay as they are. Tests that start other processes see no fault. `--numerical --again` tries
survivors by the tests of rounding, which compile programs as users do.

Survivors that change nothing that a test could see are listed in `tests/equivalent_mutants.txt`, with the reason.
"""

import argparse
import ast
import collections
import difflib
import functools
import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.txt"
FILES = [
    f"dpppl/{name}"
    for name in (
        "accounting ledger runs/budget.py runs/session.py runs/checkpoint.py access/mechanism.py access/door.py access/clipping.py "
        "access/exact_sum.py randomness/keys.py runs/histogram.py runs/driver.py runs/private_score.py runs/private_scale.py runs/query.py "
        "runs/single_steps.py runs/processes.py access randomness runs frame"
    ).split()
]
"""In order of danger."""
TESTS = "accounting ledger randomness access subsampling runs uncertainty data noise_aware/test_checkpoint.py test_replay.py".split()
WORDS = {
    "describe",
    "__repr__",
    "__str__",
    "_repr_html_",
    "ledger_line",
    "frame_line",
    "_exceeded",
    "summary",
    "as_html",
}
"""Functions that make texts."""
COSMIC = (
    *("Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_LtE Eq_GtE NotEq_Lt NotEq_Gt Is_IsNot IsNot_Is".split()),
    *("Add_Sub Sub_Add Mul_Div Div_Mul Pow_Mul FloorDiv_Div Mod_Mul BitAnd_BitOr BitOr_BitAnd LShift_RShift RShift_LShift".split()),
    *("Delete_USub Delete_Not".split()),
    *("TrueWithFalse FalseWithTrue AndWithOr OrWithAnd BreakWithContinue ContinueWithBreak".split()),
    *("ZeroIterationForLoop ExceptionReplacer NumberReplacer".split()),
)  # fmt: skip
OPPOSITE = {"min": "max", "minimum": "maximum", "any": "all", "floor": "ceil"}
OPPOSITE |= {new: old for old, new in OPPOSITE.items()}


@dataclass(frozen=True)
class Mutant:
    """`file`, `function`: where; `before`, `after`: the changed lines; `number`: among equal ones; `line`; `source`: of the file."""

    file: str
    function: str
    before: str
    after: str
    number: int
    line: int
    source: str

    @property
    def name(self) -> tuple:
        return self.file, self.function, self.before, self.after, self.number


def places(tree):
    """(first line, last line, name) of functions and methods, and of constants of the module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.body[0].lineno, node.end_lineno, node.name
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield inner.body[0].lineno, inner.end_lineno, f"{node.name}.{inner.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield node.lineno, node.end_lineno, target.id


def untouched(tree):
    """Spans of texts, types and decorators."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            yield node
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("warn", "print", "TypeVar", "NewType"):
            yield node
        elif isinstance(node, ast.FunctionDef):
            yield from node.decorator_list
            yield from [a.annotation for a in [*node.args.args, *node.args.kwonlyargs] if a.annotation]
            yield from [node.returns] if node.returns else []
        elif isinstance(node, ast.AnnAssign):
            yield node.annotation
        elif isinstance(node, ast.Assert) and ("is not None" in ast.unparse(node) or "isinstance" in ast.unparse(node)):
            yield node
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Subscript)
            and ast.unparse(node.targets[0]).isalpha()
        ):
            yield node


def own(tree):
    """Pairs of a node, or of where one starts and ends, and what to write in its place."""
    start, end = (lambda n: (n.lineno, n.col_offset)), (lambda n: (n.end_lineno, n.end_col_offset))

    def without(nodes):
        for number, node in enumerate(nodes):
            if number + 1 < len(nodes):
                yield (start(node), start(nodes[number + 1])), ""
            elif number:
                yield (end(nodes[number - 1]), end(node)), ""

    unpacked = {
        id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield from [(node.test, "False"), *([] if isinstance(node, ast.While) else [(node.test, "True")])]
        elif isinstance(node, ast.comprehension):
            yield from [(test, "True") for test in node.ifs]
        elif isinstance(node, ast.BoolOp):
            yield from without(node.values)
        elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
            yield node.value, "None"
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield):
            yield node, "pass"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            yield node, "pass"
        elif isinstance(node, ast.AugAssign):
            yield node, "pass"
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            text = " not in " if isinstance(node.ops[0], ast.In) else " in "
            yield (end(node.left), start(node.comparators[0])), text
        elif isinstance(node, ast.Tuple | ast.List | ast.Set) and isinstance(
            getattr(node, "ctx", None), ast.Load | None
        ):
            if id(node) in unpacked:
                continue
            yield from without(node.elts)
        elif isinstance(node, ast.Call):
            name = node.func
            if isinstance(name, ast.Name) and name.id in OPPOSITE:
                yield name, OPPOSITE[name.id]
            elif isinstance(name, ast.Attribute) and name.attr in OPPOSITE:
                yield (end(name.value), end(name)), f".{OPPOSITE[name.attr]}"
            given = sorted([*node.args, *node.keywords], key=start)
            for span, text in without(given):
                number = next((i for i, a in enumerate(given) if start(a) == span[0]), len(given) - 1)
                if isinstance(given[number], ast.keyword) or (
                    isinstance(name, ast.Attribute) and name.attr == "update"
                ):
                    yield span, text


def _operators():
    from cosmic_ray.plugins import get_operator, operator_names

    for name in operator_names():
        if (
            name.removeprefix("core/").removeprefix("Replace").split("Operator_")[-1] in COSMIC
            and "Unary" not in name.split("_U")[0]
        ):
            yield get_operator(name)()
        elif name.endswith(("UnaryOperator_Delete_USub", "UnaryOperator_Delete_Not")):
            yield get_operator(name)()


def _cosmic(source):
    """Where cosmic-ray changes the source, how, and a function that gives the changed source."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    nodes = list(ast_nodes(get_ast(source)))
    for operator in _operators():
        found = [span for node in nodes for span in operator.mutation_positions(node)]
        for number, span in enumerate(found):
            how = f"{type(operator).__name__} {found[:number].count(span)}"
            yield span, how, functools.partial(mutate_code, source, operator, number)


def mutants(file, share=1.0, seed=0, within=None):
    """The mutants of a file, or a share of them, in an order that changes elsewhere in the file leave as it is; `within`: of lines in this text."""
    source = (ROOT / file).read_text()
    tree, lines = ast.parse(source), source.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line.encode()) + 1)
    coded = source.encode()

    def edited(span, text):
        first, last = (offsets[line - 1] + column for line, column in span)
        return (coded[:first] + text.encode() + coded[last:]).decode()

    spans = [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in untouched(tree)]
    where = list(places(tree))
    found = []
    for node, text in own(tree):
        span = (
            node
            if isinstance(node, tuple)
            else ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        found.append((span, text, functools.partial(edited, span, text)))
    found.extend(_cosmic(source))
    kept, counts, seen = [], collections.Counter(), {source}
    for span, how, make in found:
        place = next((name for first, last, name in where if first <= span[0][0] <= last), None)
        if place in (None, "__all__") or place.split(".")[-1] in WORDS or any(a <= span[0] < b for a, b in spans):
            continue
        line = lines[span[0][0] - 1].strip()
        rank = random.Random(f"{seed} {file} {place} {line} {span[0][1]} {how}").random()
        if rank < share and (within is None or line in within):
            kept.append((rank, place, span, make))
    for _, place, span, make in sorted(kept, key=lambda each: each[0]):
        try:
            changed = make()
        except AttributeError:  # cosmic-ray's, of an exception that a module holds, as in except zipfile.BadZipFile
            continue
        if changed is None or changed in seen:
            continue
        seen.add(changed)
        try:
            if ast.dump(ast.parse(changed)) == ast.dump(tree):
                continue
            compile(changed, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        new = changed.split("\n")
        blocks = [b for b in difflib.SequenceMatcher(None, lines, new, autojunk=False).get_opcodes() if b[0] != "equal"]
        before, after = (
            " ".join(part.strip() for part in side)
            for side in (lines[blocks[0][1] : blocks[-1][2]], new[blocks[0][3] : blocks[-1][4]])
        )
        counts[place, before, after] += 1
        yield Mutant(file, place, before, after, counts[place, before, after], span[0][0], changed)


def equivalent():
    """{(file, function, before, after): reason}, as listed."""
    rows = [line.split(" | ") for line in EQUIVALENT.read_text().splitlines() if line and not line.startswith("#")]
    return {tuple(part.replace("¦", "|") for part in row[:4]): row[4] for row in rows}


class Driver:
    """A plugin of pytest that forks for each mutant in place of running the tests."""

    def __init__(self, state, files, arguments):
        self.state, self.files, self.arguments, self.failed = state, files, arguments, None
        self.paths = {str(ROOT / file): file for file in files}

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_runtestloop(self, session):
        import jax
        from jax._src import xla_bridge

        jax.live_arrays = LIVE_ARRAYS
        assert not xla_bridge.backends_are_initialized()
        gc.unfreeze()
        self.functions = collections.defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, types.FunctionType) and found.__code__.co_filename in self.paths:
                self.functions[found.__code__.co_filename, found.__code__.co_qualname].append(found)
        self.config = session.config
        self.items = {item.nodeid: item for item in session.items}
        self.record()
        self.try_all()
        return True

    def forked(self, act, seconds):
        """The exit code of a child that calls `act`; None where it took too long."""
        child = os.fork()
        if child == 0:
            try:
                null = open(os.devnull, "w")
                os.dup2(null.fileno(), 1)
                os.dup2(null.fileno(), 2)
                self.config.pluginmanager.getplugin("terminalreporter")._tw._file = null
                os._exit(act())
            except BaseException:
                os._exit(3)
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            if os.waitpid(child, os.WNOHANG)[0]:
                return 0
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def run(self, items):
        for item, after in zip(items, [*items[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                return

    def record(self):
        """Which lines of which functions each test reaches, and how long it takes."""
        path = self.state / ("reached_numerical.json" if self.arguments.numerical else "reached.json")
        kept = json.loads(path.read_text()) if path.exists() else {}
        by_file = collections.defaultdict(list)
        for item in self.items.values():
            by_file[item.nodeid.split("::")[0]].append(item)
        self.reached = {}
        for file, items in by_file.items():
            tag = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
            if kept.get(file, {}).get("tag") != tag or set(kept[file]["tests"]) != {item.nodeid for item in items}:
                out = self.state / "recorded.json"
                out.unlink(missing_ok=True)
                self.forked(lambda items=items, out=out: self._recorded(items, out), 900)
                found = json.loads(out.read_text()) if out.exists() else {}
                kept[file] = {"tag": tag, "tests": {item.nodeid: found.get(item.nodeid) for item in items}}
                path.write_text(json.dumps(kept))
                done = sum(bool(v) for v in found.values())
                print(
                    f"recorded {file}: {done} of {len(items)}, {sum(v['seconds'] for v in found.values() if v):.0f} s",
                    flush=True,
                )
            self.reached |= {name: value for name, value in kept[file]["tests"].items() if value}

    def _recorded(self, items, out):
        import threading

        found, current = {}, set()
        starts = {}
        for path, file in self.paths.items():
            for first, last, name in places(ast.parse(Path(path).read_text())):
                starts.update({(path, line): (file, name, line - first) for line in range(first, last + 1)})

        def line(frame, event, _):
            if event == "line" and (at := starts.get((frame.f_code.co_filename, frame.f_lineno))):
                current.add(at)
            return line

        def call(frame, event, _):
            return line if frame.f_code.co_filename in self.paths else None

        for item, after in zip(items, [*items[1:], None]):
            current.clear()
            self.failed, began = None, time.monotonic()
            threading.settrace(call)
            sys.settrace(call)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            sys.settrace(None)
            threading.settrace(None)
            seconds = time.monotonic() - began
            found[item.nodeid] = None if self.failed else {"seconds": seconds, "lines": sorted(current)}
            out.write_text(json.dumps(found))
        return 0

    def tests_of(self, mutant):
        """The tests that reach the changed line, those of its room and the fastest first, and whether these are all."""
        tree = ast.parse((ROOT / mutant.file).read_text())
        first = next(first for first, _, name in places(tree) if name == mutant.function)
        is_constant = (ROOT / mutant.file).read_text().split("\n")[first - 1].startswith(mutant.function)
        statement = max(
            (n.lineno for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= mutant.line <= n.end_lineno),
            default=first,
        )
        lines = {mutant.line - first, statement - first}
        names = []
        for name, value in self.reached.items():
            here = [at for at in value["lines"] if at[0] == mutant.file]
            if any(is_constant or (at[1] == mutant.function and at[2] in lines) for at in here):
                names.append(name)
        room = mutant.file.split("/")[1]
        names.sort(key=lambda name: (name.split("/")[1] != room, self.reached[name]["seconds"]))
        total, kept = 0.0, []
        for name in names:
            total += self.reached[name]["seconds"]
            if kept and total > self.arguments.longest:
                break
            kept.append(name)
        return kept, len(kept) == len(names)

    def plant(self, mutant):
        """Put the changed code into the function, wherever it is held."""
        path = str(ROOT / mutant.file)
        code = compile(mutant.source, path, "exec", dont_inherit=True)
        held = self.functions.get((path, mutant.function), [])
        if held:
            (new,) = [
                c
                for outer in code.co_consts if isinstance(outer, types.CodeType)
                for c in (outer, *outer.co_consts) if isinstance(c, types.CodeType) and c.co_qualname == mutant.function
            ]  # fmt: skip
            for function in held:
                function.__code__ = new
            return
        module = importlib.import_module(mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        old = vars(module)[mutant.function]
        namespace = {"__name__": module.__name__, "__file__": path, "__package__": module.__package__}
        exec(code, namespace)
        for other in list(sys.modules.values()):
            if (getattr(other, "__name__", "") or "").split(".")[0] == "dpppl" and vars(other).get(
                mutant.function
            ) is old:
                setattr(other, mutant.function, namespace[mutant.function])

    def tried(self, mutant, names, out):
        self.failed = None
        try:
            self.plant(mutant)
            self.run([self.items[name] for name in names])
        except BaseException as error:
            self.failed = self.failed or f"{type(error).__name__}: {error}"
        out.write_text(self.failed or "")
        return 0

    def try_all(self):
        path, out = self.state / "verdicts.jsonl", self.state / "verdict"
        done = {}
        for row in map(json.loads, path.read_text().splitlines() if path.exists() else []):
            done[tuple(row["mutant"])] = row["verdict"]
        end = time.monotonic() + 60 * self.arguments.minutes
        listed = equivalent()
        for file in self.files:
            alive = {
                name[:4] for name, verdict in done.items() if name[0] == file and verdict not in ("killed", "too slow")
            }
            if self.arguments.again:
                chosen = [m for m in mutants(file, within=" ".join(name[2] for name in alive)) if m.name[:4] in alive]
            else:
                first = itertools.islice(mutants(file, self.arguments.share, self.arguments.seed), self.arguments.most)
                chosen = (m for m in first if m.name not in done)
            for mutant in chosen:
                if mutant.name[:4] in listed:
                    continue
                if time.monotonic() > end:
                    return
                names, whole = self.tests_of(mutant)
                names = [name for name in names if name in self.items]
                out.unlink(missing_ok=True)
                if names:
                    seconds = 60 + 5 * sum(self.reached[name]["seconds"] for name in names)
                    code = self.forked(lambda m=mutant, n=names: self.tried(m, n, out), seconds)
                    test = out.read_text() if out.exists() else "died"
                    verdict = (
                        "too slow" if code is None else "killed" if test else "survived" if whole else "survived a part"
                    )
                else:
                    verdict, test = "not reached", ""
                row = {"mutant": mutant.name, "verdict": verdict, "by": test, "line": mutant.line}
                with path.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
                if verdict not in ("killed", "too slow"):
                    print(
                        f"{verdict}: {file}:{mutant.line} {mutant.function} | {mutant.before} | {mutant.after}",
                        flush=True,
                    )


def summary(state, files):
    """Counts of verdicts by file, and what is listed and is no mutant any more."""
    path, last = state / "verdicts.jsonl", {}
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        last[tuple(row["mutant"])] = row["verdict"]
    listed = equivalent()
    for file in files:
        text = " ".join(line.strip() for line in (ROOT / file).read_text().split("\n"))
        here = {name: verdict for name, verdict in last.items() if name[0] == file and name[2] in text}
        counts = collections.Counter("listed" if name[:4] in listed else verdict for name, verdict in here.items())
        if counts:
            print(f"{file}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
        for name, verdict in here.items():
            if verdict not in ("killed", "too slow") and name[:4] not in listed:
                print(f"    {verdict}: " + " | ".join(name[1:4]))
    gone = [row for row in listed if row not in {mutant.name[:4] for mutant in mutants(row[0], within=row[2])}]
    for row in gone:
        print(f"listed, and no mutant: {' | '.join(row)}")
    return not gone


def expanded(paths):
    """Files of folders, each once."""
    found = [
        p for path in paths for p in (sorted((ROOT / path).glob("*.py")) if (ROOT / path).is_dir() else [ROOT / path])
    ]
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in found))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, required=True, help="folder of what is recorded")
    parser.add_argument("--files", nargs="+", default=FILES, help="files or folders, in order")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or folders of tests/")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants of each file")
    parser.add_argument("--most", type=int, help="mutants of a file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--longest", type=float, default=6.0, help="seconds of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="repeat those that survived")
    parser.add_argument("--numerical", action="store_true", help="by the tests of rounding, which `make test-all` runs")
    parser.add_argument("--summary", action="store_true", help="only count")
    arguments = parser.parse_args()
    arguments.state.mkdir(parents=True, exist_ok=True)
    files = expanded(arguments.files)
    if not arguments.summary:
        cache = str(arguments.state.resolve() / "compiled")
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "DPPPL_TESTS": "numerical" if arguments.numerical else "quick",
        }
        os.chdir(ROOT)
        import jax
        import pytest

        global LIVE_ARRAYS
        LIVE_ARRAYS, jax.live_arrays = jax.live_arrays, list  # which would start threads, and a fork has none
        driver = Driver(arguments.state.resolve(), expanded(FILES), arguments)
        driver.paths, driver.files = {str(ROOT / file): file for file in expanded(FILES)}, files
        with tempfile.TemporaryDirectory() as folder:
            pytest.main(
                [
                    *(f"tests/{name}" for name in arguments.tests),
                    *(
                        "-q",
                        "-p",
                        "no:cacheprovider",
                        "-p",
                        "no:xdist",
                        "-m",
                        "not slow and numerical" if arguments.numerical else "not slow and not numerical",
                    ),
                    f"--basetemp={folder}/tests",
                ],
                plugins=[driver],
            )
    sys.exit(not summary(arguments.state, files))


if __name__ == "__main__":
    main()
