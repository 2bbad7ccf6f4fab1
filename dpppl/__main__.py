"""`python -m dpppl`."""

import sys

from dpppl.cli import main

if __name__ == "__main__":
    sys.exit(main())
