"""The command line."""

from dpppl.cli.main import main

__all__ = ["main"]
