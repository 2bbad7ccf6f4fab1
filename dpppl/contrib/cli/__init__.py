"""The command line."""

from dpppl.contrib.cli.main import main

__all__ = ["main"]
