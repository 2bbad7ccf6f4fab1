"""Who imports whom, and what `import dpppl` costs."""

import ast
import functools
import inspect
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dpppl
from dpppl import accounting
from dpppl.contrib import audit, pages, plotting, registry, synthetic, tuning, uncertainty

PACKAGE = Path(dpppl.__file__).parent

LEAVES = {"types", "errors", "output", "validation", "processes", "jaxprs", "accounting", "randomness"}
DOOR = LEAVES | {"data", "subsampling", "information_flow", "row_program", "access"}
METHODS = DOOR | {"model", "ledger", "report", "findings", "runs"}
MAY_IMPORT = {
    "types": set(),
    "errors": set(),
    "output": set(),
    "jaxprs": {"types"},
    "processes": {"types", "errors"},
    "validation": {"errors"},
    "accounting": {"errors", "output", "validation"},
    "randomness": {"types", "errors", "processes", "validation"},
    "data": {"types", "errors", "processes", "validation"},
    "subsampling": {"types", "errors", "validation", "randomness"},
    "information_flow": {"types", "errors", "jaxprs", "randomness", "validation"},
    "model": {"types", "errors", "data", "jaxprs", "information_flow", "validation"},
    "row_program": {"types", "errors", "jaxprs", "randomness"},
    "access": DOOR,
    "ledger": {"errors", "output", "processes", "validation", "accounting"},
    "report": LEAVES | {"access", "ledger"},
    "findings": {"errors", "access", "report"},
    "runs": DOOR | {"model", "ledger", "report", "findings"},
    "likelihood": {"types", "errors", "jaxprs", "information_flow", "model"},
    "row_statistics": METHODS - {"report", "findings"} | {"likelihood"},
    "published": {"types", "errors", "output", "validation"},
    "noise_aware": METHODS | {"likelihood", "row_statistics", "published"},
    "frame": METHODS | {"row_statistics", "noise_aware"},
    "mcmc": METHODS | {"frame"},
    "svi": METHODS | {"frame"},
    "checking": METHODS | {"row_statistics", "mcmc", "svi", "noise_aware"},
    "contrib": METHODS | {"mcmc", "svi", "noise_aware", "published"},
    "__main__": {"contrib"},
}
"""By module or subpackage, which may always import itself. `dpppl/__init__.py` may import everything."""

HOST_ONLY = {"jax", "jaxlib", "numpyro", "optax"}
"""What dpppl/accounting must not need."""


def unit(module):
    """The module or subpackage of dpppl that a dotted name belongs to: dpppl.mcmc.kernel -> mcmc."""
    return module.split(".")[1] if "." in module else "__init__"


@functools.cache
def nodes(source):
    """All nodes of a source, which is parsed once."""
    return tuple(ast.walk(ast.parse(source)))


def imports(source, module):
    """Dotted names of all modules that `source` imports anywhere, relative ones resolved."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" if base == "dpppl" else base for alias in node.names)


def violations(source, module):
    """What the module at `module`, with this source, imports although it may not."""
    own, found = unit(module), []
    for name in imports(source, module):
        if name.split(".")[0] == "dpppl":
            allowed = unit(name) == own or unit(name) in MAY_IMPORT[own]
        else:
            allowed = own != "accounting" or name.split(".")[0] not in HOST_ONLY
        if not allowed:
            found.append(name)
    return found


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield path, ".".join(parts)


def named_twice(sources):
    """Names of classes that several modules define."""
    names = Counter(n.name for source in sources for n in nodes(source) if isinstance(n, ast.ClassDef))
    return {name for name, count in names.items() if count > 1}


def test_a_name_stands_for_one_class():
    sources = [path.read_text() for path, _ in modules()]
    assert not named_twice(sources)
    assert named_twice([*sources, "class DPKernel: pass"]) == {"DPKernel"}


def test_every_module_has_its_place():
    units = {unit(module) for _, module in modules()} - {"__init__"}
    assert units <= set(MAY_IMPORT), "say in MAY_IMPORT (and docs/architecture.md) what the new module may import"


def test_nothing_imports_upwards():
    found = {
        module: wrong
        for path, module in modules()
        if unit(module) != "__init__" and (wrong := violations(path.read_text(), module))
    }
    assert not found


def test_the_core_imports_no_contrib():
    """Only `python -m dpppl` does, as the command line is all that it starts."""
    core = {module: set(imports(path.read_text(), module)) for path, module in modules() if unit(module) != "contrib"}
    assert {m for m, names in core.items() if any(f"{n}.".startswith("dpppl.contrib.") for n in names)} == {
        "dpppl.__main__"
    }
    assert not any(name.startswith("dpppl.contrib") for name in imported()[0])


def test_the_rules_have_no_circle():
    """Following what may be imported never leads back."""
    for module, below in MAY_IMPORT.items():
        for other in below - {module}:
            assert module not in MAY_IMPORT[other]


def files_imported(source, module, files):
    """The files that a file imports, anywhere in it, also for types only."""
    own = module.split(".")
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            above = own[: len(own) - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if name in files else base


def circle(sources):
    """Files, by name, that import each other in a circle, or None. A package's own file is no file here: it collects names."""
    files = {name for name in sources if not name.endswith("__init__")}
    graph = {name: {f for f in files_imported(sources[name], name, files) if f in files} for name in files}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_no_files_import_each_other_in_a_circle():
    sources = {module: path.read_text() for path, module in modules()}
    assert circle(sources) is None
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpppl.mcmc.kernel import DPKernel\n"
    assert "dpppl.mcmc.dynamics" in circle(sources | {"dpppl.mcmc.dynamics": hidden + sources["dpppl.mcmc.dynamics"]})


ROOMS = {
    "top": ("__init__ __main__ types errors output validation checking", 856, 600),
    "privacy": ("accounting ledger", 3_793, 3_000),
    "randomness": ("randomness subsampling", 1_197, 1_100),
    "data": ("data", 1_664, 900),
    "model": ("model", 4_732, 2_700),
    "proof": ("information_flow jaxprs", 1_777, 1_300),
    "access": ("access row_program", 3_123, 1_700),
    "session": ("runs processes", 2_663, 1_500),
    "likelihood": ("likelihood", 417, 400),
    "frame": ("frame", 638, 404),
    "findings": ("findings", 554, 430),
    "report": ("report", 967, 800),
    "mcmc": ("mcmc", 2_623, 1_400),
    "svi": ("svi", 2_576, 1_400),
    "row_statistics": ("row_statistics", 1_642, 700),
    "published": ("published", 939, 700),
    "noise_aware": ("noise_aware", 2_984, 900),
    "contrib": ("contrib", 4_169, 4_000),
}
"""By room, its folders and files; the most lines of Python that it may have, docstrings and blanks counted, and the goal.
Lower the first number towards the goal with each change that makes a room shorter."""


def lines_of_rooms():
    """Lines by room. A folder or file that no room names is a room of its own."""
    room_of = {each: room for room, (parts, *_) in ROOMS.items() for each in parts.split()}
    found = dict.fromkeys(ROOMS, 0)
    for path, module in modules():
        name = room_of.get(unit(module), unit(module))
        found[name] = found.get(name, 0) + len(path.read_text().splitlines())
    return found


def test_rooms_keep_to_their_budgets():
    found = lines_of_rooms()
    assert found.keys() == ROOMS.keys(), "name the new folder in ROOMS"
    assert not {room: lines for room, lines in found.items() if lines > ROOMS[room][1]}
    assert all(goal <= most for _, most, goal in ROOMS.values())


def pokes(source):
    """Lines that reach into an object's dict: `__dict__`, or a write to what `vars` gives, but for `__setstate__`."""
    unpickling = (n for n in nodes(source) if isinstance(n, ast.FunctionDef) and n.name == "__setstate__")
    allowed = {id(inner) for function in unpickling for inner in ast.walk(function)}

    def is_vars(node):
        return isinstance(node, ast.Call) and ast.unparse(node.func) == "vars"

    for node in nodes(source):
        method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func
        writes = method and method.attr in ("update", "setdefault", "pop", "clear") and is_vars(method.value)
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and is_vars(node.value)
        in_words = isinstance(node, ast.Attribute) and node.attr == "__dict__"
        if in_words or ((writes or stored) and id(node) not in allowed):
            yield ast.unparse(node)


def test_no_code_reaches_into_the_dict_of_an_object():
    assert not {module: wrong for path, module in modules() if (wrong := list(pokes(path.read_text())))}
    made_up = "a.__dict__ = {}\nvars(a)['b'] = 1\nvars(a).update(b=1)\nc = vars(a)['b'] | dict(vars(a)).pop('b')\n"
    assert list(pokes(made_up)) == ["a.__dict__", "vars(a)['b']", "vars(a).update(b=1)"]


OF_OTHERS = {"_mask", "_support", "_unpack_latent", "_init_locs", "_guides", "_getframe", "_repr_html_"}
"""Private names that NumPyro and Python define."""


def private(source):
    """Reads and writes of another object's private fields: outside of the class that has a method of this name, and not by
    self, cls or super()."""
    own = {id(inner): node for node in nodes(source) if isinstance(node, ast.ClassDef) for inner in ast.walk(node)}
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in OF_OTHERS:
            named = node.attr in ("_replace", "_asdict", "_fields", "_make") or ast.unparse(node.value) in (
                "self",
                "cls",
                "super()",
            )
            methods = getattr(own.get(id(node)), "body", ())
            if not named and node.attr not in {getattr(each, "name", None) for each in methods}:
                yield ast.unparse(node)


def test_no_object_reads_or_writes_the_private_fields_of_another():
    assert not {module: wrong for path, module in modules() if (wrong := list(private(path.read_text())))}
    made_up = "class A:\n def _b(self): return self._c, A()._b, other._d\nA()._b = a._replace(_e=1)"
    assert sorted(private(made_up)) == ["A()._b", "other._d"]


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("dpppl.access.mechanism", "from dpppl.mcmc.kernel import DPKernel", "dpppl.mcmc.kernel"),
        ("dpppl.randomness.keys", "def f():\n    from dpppl import model", "dpppl.model"),
        ("dpppl.mcmc.kernel", "from dpppl.svi.runner import SVI", "dpppl.svi.runner"),
        ("dpppl.mcmc.kernel", "from ..svi import runner", "dpppl.svi"),
        ("dpppl.row_program.hoist", "import dpppl.access.mechanism", "dpppl.access.mechanism"),
        ("dpppl.accounting.curves", "import jax.numpy as jnp", "jax.numpy"),
        ("dpppl.accounting.curves", "from .. import randomness", "dpppl.randomness"),
        ("dpppl.errors", "from . import randomness", "dpppl.randomness"),
        ("dpppl.runs.query", "from dpppl.contrib import audit", "dpppl.contrib"),
        ("dpppl.svi.elbo", "from dpppl.mcmc.three_kernels import DPSGLD", "dpppl.mcmc.three_kernels"),
    ],
)
def test_an_upward_import_would_be_found(module, source, wrong):
    assert violations(source, module) == [wrong]


def test_what_is_imported_is_declared():
    """Each package that a module imports, under its name among the dependencies or the extras."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.match(r"[\w-]+", each)[0].replace("-", "_") for each in declared}
    found = {name.split(".")[0] for path, module in modules() for name in imports(path.read_text(), module)}
    assert "tqdm" in found and found - set(sys.stdlib_module_names) <= names


LOADED = """
import sys
import numpyro
before = set(sys.modules)
for modules in ("dpppl", "dp_accounting, scipy.stats"):
    exec(f"import {modules}")
    print(*sys.modules.keys() - before)
"""


@functools.cache
def imported():
    """Names of the modules that NumPyro does not load, in a fresh interpreter with dpppl, and then with accountants, too."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_importing_dpppl_is_light():
    """No package that NumPyro does not load; the accountants, which would take as long as NumPyro, are found."""
    light, heavy = ({name.split(".")[0] for name in names} - sys.stdlib_module_names for names in imported())
    assert light <= {"dpppl", "jax"} and {"dp_accounting", "scipy"} <= heavy


def test_every_keyword_is_explained():
    """help(dpppl.DPSGLD) and the others name each argument of the call."""
    shared = inspect.signature(dpppl.DPSGLD).parameters
    for thing in (
        dpppl.DPSGLD,
        dpppl.DPSGHMC,
        dpppl.DPSGNHT,
        dpppl.SVI,
        dpppl.MCMC,
        dpppl.PrivacyLedger,
        dpppl.Poisson,
    ):
        known = inspect.getdoc(thing) + inspect.getdoc(dpppl.DPSGLD) * (thing in (dpppl.DPSGHMC, dpppl.DPSGNHT))
        if thing is dpppl.MCMC:
            known += "num_warmup num_samples num_chains thinning chain_method progress_bar progress_rate"  # NumPyro's
        missing = [name for name in inspect.signature(thing).parameters if name not in known and name != "settings"]
        assert not missing, (thing, missing)
    assert "step_size" in shared and set(dpppl.__all__) <= set(dir(dpppl)) and dpppl.__version__


def users_of(name, sources):
    """Modules that mention an attribute of this name, in sources by module."""
    return {module for module, _ in places(name, sources)}


def places(name, sources):
    """Where an attribute of this name stands, as module and expression, in sources by module."""
    for module, source in sources.items():
        found = (n for n in nodes(source) if isinstance(n, ast.Attribute) and n.attr == name)
        yield from ((module, ast.unparse(node)) for node in found)


def test_one_protocol_charges_before_an_access():
    """Budgets are reserved by sessions alone. One line charges a reservation, in `Session.charge`; steps by hand have
    `charge_one`."""
    sources = {module: path.read_text() for path, module in modules()}
    assert users_of("reserve_for", sources) == {"dpppl.runs.session"}
    assert users_of("reservation", sources) == {"dpppl.runs.session"}
    assert users_of("charge_one", sources) == {"dpppl.svi.by_hand"}
    charged = [(module, found) for module, found in places("charge", sources) if found.endswith("reservation.charge")]
    assert charged == [("dpppl.runs.session", "self.reservation.charge")]
    assert users_of("reserve_for", {"a": "x.reserve_for(1)", "b": "reserve_for(1)"}) == {"a"}
    assert list(places("charge", {"a": "one.reservation.charge(0, 1)"})) == [("a", "one.reservation.charge")]


def set_from_inside(source):
    """Attributes that a nested function sets of an object of a function around it, such as `self.norm` of a method's `self`."""
    functions = [node for node in nodes(source) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    nested = {inner for outer in functions for inner in ast.walk(outer) if inner in functions and inner is not outer}
    for function in nested:
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        own = stored | {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                if ast.unparse(node.value).split(".")[0] not in own:
                    yield ast.unparse(node)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "object.__setattr__"):
                yield ast.unparse(node)


def test_values_come_back_from_functions():
    """No function within a function sets a field of an object that is not its own: what it finds, it returns."""
    assert not {m: found for path, m in modules() if (found := list(set_from_inside(path.read_text())))}
    method = "def run(self):\n    def choose(norm, own):\n        {}\n    return locate(choose)\n"
    wrong = [
        "self.norm = norm",
        "self.norm, x = 1, 2",
        "self.plan.norm += 1",
        "setattr(self, 'norm', norm)",
        "del self.norm",
    ]
    assert all(list(set_from_inside(method.format(line))) for line in wrong)
    right = ["own.norm = norm", "found = f()\n        found.norm = 1", "return self.norm"]
    assert not any(list(set_from_inside(method.format(line))) for line in right)
    assert not list(set_from_inside("class A:\n    def run(self):\n        self.norm = locate()\n"))


ELSEWHERE = {"SVISettings", "NoiseAwareSettings", "DPKernel"}
"""Base classes: the arguments are documented at the class that a user calls."""
PUBLIC = (dpppl, accounting, audit, dpppl.information_flow, pages, plotting, registry, synthetic, tuning, uncertainty)
NOT_PUBLIC = {"register_door", "check_row_program", "draw_part"}


def fields(node):
    """The fields of a dataclass or a NamedTuple, or the arguments of a class."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return [a.arg for a in (*item.args.args[1:], *item.args.kwonlyargs)]
    text = " ".join(ast.unparse(each) for each in (*node.decorator_list, *node.bases))
    declared = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign)]
    return [n for n in declared if n[0] != "_"] if "dataclass" in text or "NamedTuple" in text else []


def undocumented(source):
    """(class, field) for each public class with a field that has no bullet."""
    classes = [node for node in nodes(source) if isinstance(node, ast.ClassDef)]
    for node in (node for node in classes if node.name[0] != "_" and node.name not in ELSEWHERE):
        lines = (ast.get_docstring(node) or "").split("\n")
        bullets = {name for line in lines if line.startswith("- **") for name in re.findall(r"\*\*(\w+)\*\*", line)}
        yield from ((node.name, name) for name in fields(node) if name not in bullets)


def test_each_field_is_a_bullet():
    found = {module: names for path, module in modules() if (names := list(undocumented(path.read_text())))}
    assert not found
    assert list(undocumented('class A(NamedTuple):\n    """- **x** - one."""\n    x: int\n    y: int')) == [("A", "y")]


def public_functions():
    """By name, each function of the public modules, and each method of their classes that has words of its own."""
    for module in PUBLIC:
        own = [n for n, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
        for name in getattr(module, "__all__", own):
            thing = getattr(module, name)
            members = {name: thing} if inspect.isfunction(thing) else {}
            if inspect.isclass(thing):
                room = thing.__module__.rpartition(".")[0]
                bases = [base for base in reversed(thing.__mro__) if base.__module__.startswith(room)]
                members = {n: f for base in bases for n, f in vars(base).items()}
            for member, function in members.items():
                is_ours = inspect.isfunction(function) and function.__module__.startswith("dpppl") and function.__doc__
                if is_ours and member[0] != "_" and member not in NOT_PUBLIC:
                    yield f"{thing.__module__}.{thing.__qualname__}.{member}", function


def without_bullet(function):
    """The parameters of a function that no bullet of its docstring names; none if it has at most three."""
    names = [
        name for name in inspect.signature(function).parameters if name not in ("self", "cls", "svi", "noise_aware")
    ]
    lines = [line for line in inspect.getdoc(function).split("\n") if line.startswith("- **")]
    bullets = {name for line in lines for name in re.findall(r"\*\*(\w+)\*\*", line)}
    return [name for name in names if name not in bullets] if len(names) > 3 else []


def test_each_parameter_of_a_public_function_is_a_bullet():
    functions = dict(public_functions())
    assert not {name: missing for name, function in functions.items() if (missing := without_bullet(function))}
    assert len(functions) > 80

    def made_up(a, b, c, d):
        """Words.

        - **a**, **b** - two.
        - **c** - another.
        """

    assert without_bullet(made_up) == ["d"]


def test_the_page_names_files_that_exist():
    names = set(re.findall(r"`([\w/]+\.py)`", (PACKAGE.parent / "docs/architecture.md").read_text()))
    assert "access/clipping.py" in names and not [name for name in names if not (PACKAGE / name).exists()]


def on_page(page):
    """Modules that the page's list names, one a line, under the folders that they are in."""
    folders = []
    for line in page.split("```")[1].splitlines()[2:]:
        depth, first = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        if depth == 0:  # folders outside of the package
            return
        if first.endswith("/"):
            folders[depth - 1 :] = [first[:-1]]
        elif first.endswith(".py"):
            yield ".".join(["dpppl", *folders[: depth - 1], first[:-3]])


def not_named_once(sources, page):
    """Files that neither the list of their folder's `__init__` nor the page's list names, or both."""
    listed = set(on_page(page))
    for module in sources:
        folder, _, name = module.rpartition(".")
        words = ast.get_docstring(ast.parse(sources.get(f"{folder}.__init__", "")), clean=False) or ""
        in_room = re.search(rf"^    {name} +\S", words, re.MULTILINE)
        if name != "__init__" and (in_room is None) == (module not in listed):
            yield module


def test_each_file_is_named_once_with_its_purpose():
    """A room names its files in its `__init__`, in reading order, or the page does."""
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    sources = {module: path.read_text() for path, module in modules()}
    assert not list(not_named_once(sources, page)) and not set(on_page(page)) - set(sources)
    made_up = dict.fromkeys(("dpppl.a.one", "dpppl.a.two", "dpppl.a.three", "dpppl.b.one"), "")
    made_up["dpppl.a.__init__"] = '"""A room.\n\n    one  a word\n    two  another\n"""'
    page = "```\ndpppl/\n  a/\n    two.py  again\n  b/  a room\n    one.py\n```"
    assert list(not_named_once(made_up, page)) == ["dpppl.a.two", "dpppl.a.three"]
