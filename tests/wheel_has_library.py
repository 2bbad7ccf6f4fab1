"""Ask an installed wheel whether its C library works on this platform: `python tests/wheel_has_library.py`."""

import sys

from dpppl.randomness import native

if __name__ == "__main__":
    sys.exit(0 if native.available() else "the wheel has no C library that works")
