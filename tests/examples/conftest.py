"""A model for the examples that train."""

from tests.benchmarks.conftest import model as model
