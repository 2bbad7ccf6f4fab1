"""Sphinx: the site in docs/. CONTRIBUTING.md says why furo, and how pages are run."""

import os
import re
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from dpppl.report.version import VERSION  # noqa: E402

# Kernels of notebooks import this checkout, and draw the same secret keys in every build.
os.environ["PYTHONPATH"] = str(HERE.parent)
os.environ["IPYTHONDIR"] = str(HERE / "_ipython")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PYTHONWARNINGS"] = "ignore:IProgress"

project, author, release = "dpppl", "dpppl developers", VERSION
copyright = "dpppl developers"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_ipython", "results"]
html_theme = "furo"
html_title = "dpppl"
html_theme_options = {"source_directory": "docs/"}
html_extra_path = ["report-schema.json", "likelihood-schema.json"]
templates_path: list[str] = []
html_static_path = ["_static"]
html_css_files = ["site.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
suppress_warnings = ["myst.header"]  # older pages skip a level where a section is short

INVENTORIES = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "jax": "https://docs.jax.dev/en/latest/",
    "numpyro": "https://num.pyro.ai/en/stable/",
    "arviz": "https://python.arviz.org/en/stable/",
}


def _reached(address: str) -> bool:
    try:
        with urllib.request.urlopen(address + "objects.inv", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


intersphinx_mapping = {name: (url, None) for name, url in INVENTORIES.items() if _reached(url)}
intersphinx_timeout = 10


def _as_rst(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Docstrings are written in Markdown's way: `code` in single ticks, and no markup elsewhere but bullets and bold names."""
    in_example, found = False, []
    for line in lines:
        if line.lstrip().startswith(">>>"):
            if not in_example and found and found[-1].strip():
                found.append("")
            in_example = True
        elif not line.strip():
            in_example = False
        if in_example:
            found.append(line)
            continue
        is_bullet = line.lstrip().startswith("- ")
        if is_bullet and found and found[-1].strip() and not found[-1].lstrip().startswith(("- ", "  ")):
            found.append("")
        parts = re.split(r"(`[^`]+`)", line)
        parts = [f"`{p}`" if p.startswith("`") else _escaped(p) for p in parts]
        found.append("".join(parts))
    lines[:] = [*found, ""]


def _escaped(text: str) -> str:
    """The text with RST's own signs taken as they are, but for **names** at the start of bullets."""
    bold = re.split(r"(\*\*\w[\w., *]*?\*\*)", text)
    return "".join(b if b.startswith("**") else re.sub(r"([*|])|(?<=\w)(_)(?=\W|$)", r"\\\g<0>", b) for b in bold)


def _from_the_root(app, docname, source):  # type: ignore[no-untyped-def]
    """The pages of the root: its files, with links as they are in docs/."""
    if docname in ("security", "contributing", "changelog"):
        path = HERE.parent / f"{docname.upper()}.md"
        app.env.note_dependency(str(path))
        text = re.sub(r"\]\((SECURITY|CONTRIBUTING|CHANGELOG)\.md", lambda m: m[0].lower(), path.read_text())
        source[0] = text.replace("](docs/", "](")


def setup(app):  # type: ignore[no-untyped-def]
    """Convert docstrings, and take the root's pages."""
    app.connect("source-read", _from_the_root)
    app.connect("autodoc-process-docstring", _as_rst)
