"""The version of the package, also where it is imported from a checkout that is not installed."""

VERSION = "0.4.0"
