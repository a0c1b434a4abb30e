"""Orchestry: reinforcement learning for teams of language models.

The facade: what a task imports, and what a notebook calls. Names load on first use, so that
importing one of them costs no more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestry import errors as errors
    from orchestry.answers import extract_code as extract_code
    from orchestry.answers import parse_code as parse_code
    from orchestry.cli.notebook import evaluate as evaluate
    from orchestry.cli.notebook import train as train
    from orchestry.config import RunConfig as RunConfig
    from orchestry.equality import compare as compare
    from orchestry.errors import ConfigError as ConfigError
    from orchestry.errors import OrchestryError as OrchestryError
    from orchestry.store import load_run as load_run
    from orchestry.task import BaseTask as BaseTask
    from orchestry.task import TeamTask as TeamTask
    from orchestry.task import Transcript as Transcript
    from orchestry.task import read_problems as read_problems
    from orchestry.types import AgentSpec as AgentSpec
    from orchestry.types import Call as Call
    from orchestry.types import Frozen as Frozen
    from orchestry.types import Limits as Limits
    from orchestry.types import Problem as Problem
    from orchestry.types import Score as Score
    from orchestry.types import Split as Split
    from orchestry.types import Tools as Tools

__version__ = "0.1.0"

_HOME = {
    "extract_code": "answers",
    "parse_code": "answers",
    "RunConfig": "config",
    "ConfigError": "errors",
    "OrchestryError": "errors",
    "train": "cli.notebook",
    "evaluate": "cli.notebook",
    "load_run": "store",
    "compare": "equality",
    "BaseTask": "task",
    "TeamTask": "task",
    "Transcript": "task",
    "read_problems": "task",
    "AgentSpec": "types",
    "Call": "types",
    "Frozen": "types",
    "Limits": "types",
    "Problem": "types",
    "Score": "types",
    "Split": "types",
    "Tools": "types",
}
__all__ = sorted([*_HOME, "errors"])  # noqa: PLE0605


def __dir__() -> list[str]:
    """What a notebook offers: the facade, without what this file needs itself."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("orchestry.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'orchestry' has no attribute '{name}'")
    return getattr(import_module(f"orchestry.{_HOME[name]}"), name)
