"""The fixtures of the command line and of the local backend, for all extensions."""

from tests.backends.conftest import finished as finished
from tests.backends.conftest import model as model
from tests.backends.conftest import tasks as tasks
from tests.cli.conftest import cli as cli
