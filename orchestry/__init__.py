"""Orchestry: reinforcement learning for teams of language models.

The facade: the names that tasks and notebooks import. Each loads on first use, so importing one
loads only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestry.api import Run as Run
    from orchestry.api import evaluate as evaluate
    from orchestry.api import load_run as load_run
    from orchestry.api import train as train
    from orchestry.core import errors as errors
    from orchestry.core.config import RunConfig as RunConfig
    from orchestry.core.errors import ConfigError as ConfigError
    from orchestry.core.types import AgentSpec as AgentSpec
    from orchestry.core.types import Call as Call
    from orchestry.core.types import Frozen as Frozen
    from orchestry.core.types import Limits as Limits
    from orchestry.core.types import Problem as Problem
    from orchestry.core.types import Score as Score
    from orchestry.core.types import Split as Split
    from orchestry.core.types import Tools as Tools
    from orchestry.task import datasets as datasets
    from orchestry.task import generated as generated
    from orchestry.task import prose as prose
    from orchestry.task import tools as tools
    from orchestry.task import vector as vector
    from orchestry.task.base import BaseTask as BaseTask
    from orchestry.task.base import TeamTask as TeamTask
    from orchestry.task.base import Transcript as Transcript
    from orchestry.task.base import read_problems as read_problems
    from orchestry.task.check import check_task as check_task
    from orchestry.task.code import best_constant as best_constant
    from orchestry.task.code import beyond_chance as beyond_chance
    from orchestry.task.code import compare as compare
    from orchestry.task.code import dump_code as dump_code
    from orchestry.task.code import extract_code as extract_code
    from orchestry.task.code import join_code as join_code
    from orchestry.task.code import parse_code as parse_code
    from orchestry.task.code import shorten as shorten
    from orchestry.task.code import show_call as show_call
    from orchestry.task.code import show_value as show_value
    from orchestry.task.code import unparse_code as unparse_code
    from orchestry.task.programs.agent_task import AgentTask as AgentTask

__version__ = "0.1.0"

_HOME = {
    "beyond_chance": "task.code",
    "best_constant": "task.code",
    "compare": "task.code",
    "dump_code": "task.code",
    "extract_code": "task.code",
    "join_code": "task.code",
    "parse_code": "task.code",
    "shorten": "task.code",
    "show_call": "task.code",
    "show_value": "task.code",
    "unparse_code": "task.code",
    "RunConfig": "core.config",
    "ConfigError": "core.errors",
    "Run": "api",
    "evaluate": "api",
    "train": "api",
    "load_run": "api",
    "AgentTask": "task.programs.agent_task",
    "BaseTask": "task.base",
    "TeamTask": "task.base",
    "Transcript": "task.base",
    "read_problems": "task.base",
    "check_task": "task.check",
    "AgentSpec": "core.types",
    "Call": "core.types",
    "Frozen": "core.types",
    "Limits": "core.types",
    "Problem": "core.types",
    "Score": "core.types",
    "Split": "core.types",
    "Tools": "core.types",
}
_MODULES = {
    "errors": "core",
    "datasets": "task",
    "generated": "task",
    "prose": "task",
    "tools": "task",
    "vector": "task",
}
__all__ = sorted([*_HOME, *_MODULES])  # noqa: PLE0605


def __dir__() -> list[str]:
    """The facade's names, for completion in a notebook."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"orchestry.{_MODULES[name]}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'orchestry' has no attribute '{name}'")
    return getattr(import_module(f"orchestry.{_HOME[name]}"), name)
