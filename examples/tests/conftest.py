"""The fixtures, options and plugins of all tests."""

import runpy
from pathlib import Path

_FOUND = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "tests" / "conftest.py")
)  # not `tests`, which others install, too
globals().update({name: value for name, value in _FOUND.items() if not name.startswith("__")})
