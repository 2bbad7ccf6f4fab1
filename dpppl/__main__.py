"""`python -m dpppl`."""

import sys

from dpppl.contrib.cli import main

if __name__ == "__main__":
    sys.exit(main())
