"""A task whose answers carry their worth in their text, and judges over HTTP that read it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestry.core.config import RunConfig, validate
from tests.cli.support import Reply, chat, served

WORTHS = (7, 1, 5, 3)
PROBLEMS = 10
"""In each of train and dev."""
TASK = f"""
from orchestry import AgentSpec, Problem, TeamTask


class Planted(TeamTask):
    name = "planted"
    agents = (AgentSpec(role="writer", goal="write"),)

    def problems(self, split):
        return [Problem(id=f"{{split}}-{{n}}", prompt=f"{{split}} {{n}}", split=split)
                for n in range({PROBLEMS})]

    def graded(self, problem):
        return [{{"writer": f"worth {{w}} of {{problem.id}}"}} for w in {WORTHS}]

    async def evaluate(self, state, tools):
        worth = int((state.last("writer") or "worth 0").split()[1]) / 10
        return self.score(quality=worth, feedback=f"SECRET {{worth}}")
"""
Rate = Callable[[str, int, random.Random], float]
"""A candidate's text and place, and luck that follows from the request -> points."""


def plant(folder: Path) -> Path:
    """Writes the task; returns its task path."""
    (folder / "planted").mkdir(parents=True)
    (folder / "planted" / "task.py").write_text(TASK, encoding="utf-8")
    return folder


def worth(text: str) -> int:
    return int(text.split()[1])


@dataclass
class Bench:
    """A judge behind chat completions; it keeps what it was asked."""

    rate: Rate
    garbled: Callable[[str, bool], bool] = lambda prompt, repair: False
    refuses: bool = False
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    firsts: list[str] = field(default_factory=list)

    def answer(self, number: int, body: dict[str, Any]) -> Reply:
        if self.refuses:
            return 401, b'{"error": {"message": "no"}}'
        prompt, repair = body["messages"][1]["content"], len(body["messages"]) > 2
        texts = re.findall(
            r" begin candidate \w+, by \w+\]\n(.*?)\n\[\w+ end candidate", prompt, re.S
        )
        self.bodies.append(body)
        self.firsts.append(texts[0])
        if self.garbled(prompt, repair):
            return 200, chat("I would rather not.")
        labels = body["response_format"]["json_schema"]["schema"]["required"]
        luck = random.Random(body["seed"])
        said = {"feedback": "So.", "collaboration": 0, "efficiency": 0}
        verdict = {
            label: {**said, "quality": round(min(10, max(0, self.rate(text, place, luck))))}
            for place, (label, text) in enumerate(zip(labels, texts, strict=True))
        }
        return 200, chat(json.dumps(verdict))


@contextmanager
def judging(rate: Rate, **kwargs: Any) -> Iterator[Bench]:
    """A judge that can be asked."""
    bench = Bench(rate, **kwargs)
    with served(bench.answer) as url:
        bench.url = url
        yield bench


def config(bench: Bench, tasks: Path, **changes: Any) -> RunConfig:
    """A check of that judge on the planted task; only quality counts."""
    raw: dict[str, Any] = {
        "task": "planted",
        "task_path": [str(tasks)],
        "provider": {"name": "openai", "model": "m", "base_url": bench.url},
        "judge": {"quality": 1.0, "collaboration": 0.0, "efficiency": 0.0},
        "prices": {"m": {"input": 1.0, "output": 1.0}},
        "cache": {"enabled": False},
        "allow_unsafe_code": True,
    }
    return validate(raw | changes)


def good(text: str, place: int, luck: random.Random) -> float:
    return worth(text)


def biased(text: str, place: int, luck: random.Random) -> float:
    """Three points for standing first, which lifts a candidate over its next better one."""
    return worth(text) + 3 * (place == 0)


def noise(text: str, place: int, luck: random.Random) -> float:
    return luck.randrange(11)
