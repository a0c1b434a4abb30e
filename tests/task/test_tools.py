"""The ready-made tool, the page's example, and the baseline that gives one agent all tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

import orchestry
from orchestry import AgentSpec, Limits, Problem, tools
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.sandbox import open_sandbox
from orchestry.task.arrangements import ALONE, Fixed
from orchestry.task.registry import load_task
from tests.toys import Duo

ROOT = Path(__file__).parents[2]


async def ran(code: str) -> str:
    """What `python` says of the code, in a real sandbox."""
    async with open_sandbox(Limits()) as sandbox:
        here = tools.ToolContext("coder", Problem(id="one", prompt=""), sandbox)
        return await tools.python.use(json.dumps({"code": code}), here)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def main():\n    return [1, (2,), 'x']", "[1, (2,), 'x']"),
        ("def main():\n    return 1 / 0", "error: error: ZeroDivisionError: division by zero"),
        ("def other(): pass", "error: error: "),
        ("def main(:", "error: error: SyntaxError"),
        ("def main():\n    while True: pass", "error: timeout: "),
        ("def main():\n    return open('/etc/passwd').read()", "error: error: "),
    ],
)
async def test_python_runs_in_the_sandbox(code: str, said: str) -> None:
    assert (await ran(code)).startswith(said)


@pytest.mark.slow
def test_the_example_of_the_page_plays(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    source = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "task.py").write_text(source)
    path = f"task_path=[{tmp_path}]"
    run = orchestry.train(
        resolve([], ["task=shop", path, "provider.name=fake", "episodes=2"], {}), tmp_path / "run"
    )
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    calls = [
        call.name for turn in turns for step in turn.completion.steps for call in step.said.calls
    ]
    assert set(calls) == {"price", "python"}
    (clerk, _) = load_task("shop", [tmp_path]).agents
    assert [one.spec.name for one in clerk.every_tool] == ["price", "python"]


def double(first: int) -> int:
    """Doubles."""
    return 2 * first


def add(first: int) -> int:
    """Adds one."""
    return first + 1


def test_baseline_fixed_has_the_tools_of_all() -> None:
    (alone,) = Fixed(_duo((add,), (add, tools.python)), ["a", "b"]).agents
    assert alone.role == ALONE
    assert [one.spec.name for one in alone.every_tool] == ["add", "python"]
    assert alone.max_calls == 16


def test_baseline_fixed_refuses_two_tools_of_one_name() -> None:
    other = tools.tool(double, name="other")
    with pytest.raises(ConfigError, match="agent alone has two tools 'other'"):
        Fixed(_duo((tools.tool(add, name="other"),), (other,)), ["a", "b"])


def _duo(*given: Any) -> Any:
    """A task of two agents with these tools."""
    task = cast(Any, Duo())
    roles = [spec.role for spec in task.agents]
    vars(task)["agents"] = tuple(
        AgentSpec(role=role, tools=some) for role, some in zip(roles, given, strict=True)
    )
    return task
