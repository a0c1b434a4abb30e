"""The fixtures of the command line and of the local backend."""

from tests.backends.conftest import model as model
from tests.cli.conftest import cli as cli
