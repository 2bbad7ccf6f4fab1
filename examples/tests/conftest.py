"""The fixtures, options and plugins of all tests."""

from tests.conftest import *  # noqa: F403
