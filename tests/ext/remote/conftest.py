"""The command line's fixtures."""

from tests.cli.conftest import cli as cli
