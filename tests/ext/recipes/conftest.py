"""The local backend's fixtures."""

from tests.backends.conftest import finished as finished
from tests.backends.conftest import model as model
from tests.backends.conftest import tasks as tasks
