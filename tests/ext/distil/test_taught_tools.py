"""Moves with tools as examples: from gold and from runs, to weights that call by themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local import trainer as trainers
from orchestry.backends.tools import LAST
from orchestry.core.errors import ConfigError
from orchestry.core.tools import ToolCall
from orchestry.engine.run import prepare
from orchestry.ext.distil.distil import distil, encoded, open_trainer
from orchestry.ext.distil.examples import Examples, examples
from orchestry.ext.distil.winners import Lesson, each_once
from tests.backends import letters
from tests.backends.local.tiny import tiny_folder
from tests.models.conftest import KEY

pytestmark = pytest.mark.usefixtures("one_thread")
TOOLED = (
    letters.TASK.replace(
        "import AgentSpec, BaseTask, Problem", "import AgentSpec, BaseTask, Problem, tools"
    )
    .replace(
        "ROLES = (",
        '''
def count(text: str) -> int:
    """Counts."""
    return len(text)


ROLES = (''',
        1,
    )
    .replace(
        "system_prompt=role[0])",
        "system_prompt=role[0], tools=(tools.tool(count, effects=False),), max_calls=2)",
    )
    + """
    def gold(self, problem):
        call = tools.ToolCall(id="c", name="count", arguments='{"text": "ab"}')
        return {"left": tools.Said("eee", [call]), "right": "ee"}
"""
)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with room for tools in its prompts: a byte is a token."""
    folder = tiny_folder(tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return str(folder)


def team(model: str, folder: Path, source: str = TOOLED) -> dict[str, Any]:
    if not (folder / "letters").exists():
        letters.write_task(folder, source)
    return {
        "task": "letters",
        "task_path": [str(folder)],
        "provider": {"model": model},
        "learn": {"rank": 8, "alpha": 16, "threads": 1},
    }


def left(found: Examples) -> list[Lesson]:
    return [one for one in found.lessons if isinstance(one, Lesson) and one.agent == "left"]


def test_gold_with_calls_is_a_lesson_per_answer(wide: str, tmp_path: Path) -> None:
    found = examples([], config=team(wide, tmp_path), gold=True, held_out=0.0)
    call, answer = left(found)[:2]
    assert [(one.name, one.arguments) for one in call.calls] == [("count", '{"text": "ab"}')]
    assert [message.role for message in call.messages] == ["system", "user"]
    assert (answer.answer, answer.calls) == ("eee", ())
    assert [message.role for message in answer.messages[2:]] == ["assistant", "tool"]
    assert answer.messages[-1].content == "2"
    assert all([tool.name for tool in one.tools] == ["count"] for one in left(found))
    trainer = open_trainer(prepare(found.setup.config, need_key=False), found.settings, print)
    learn: Any = encoded(found, trainer).learn
    tokenizer: Any = trainer.crews[0].base.tokenizer
    told = [tokenizer.decode(one.ids) for one in learn if one.agent == "left"]
    assert told[0].startswith('<tool_call>\n{"name": "count", "arguments": {"text": "ab"}}\n</tool')
    assert "</tool_response>" in tokenizer.decode(learn[1].prompt_ids)


@pytest.mark.slow
def test_a_local_runs_calls_are_learned_as_they_were_drawn(
    wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tiny model writes a call by itself: an answer whose first byte is odd is read as one."""

    def read(text: str, before: object) -> tuple[str, tuple[ToolCall, ...]]:
        odd = bool(text) and ord(text[0]) % 2
        return text, (ToolCall(id="c", name="count", arguments="{}"),) if odd else ()

    monkeypatch.setattr(trainers, "read_calls", read)
    letters.write_task(tmp_path / "tasks", TOOLED)
    run = orchestry.train(letters.config(wide, tmp_path / "tasks"), tmp_path / "run")
    found = examples([run], top=1.0, held_out=0.0)
    trainer = open_trainer(prepare(found.setup.config, need_key=False), found.settings, print)
    drawn = {
        (one.tokens.prompt_ids, one.tokens.ids)
        for record in run.episodes
        for turn in letters.turns(record)
        for one in turn.completion.answers
        if one.tokens
    }
    learn: Any = encoded(found, trainer).learn
    learned = [(one.prompt_ids, one.ids) for one in learn]
    assert sum(bool(one.messages[2:]) for one in left(found)) > 4, "answers after calls"
    assert {*learned} <= drawn, "also those whose prompt says that no calls are left"
    assert any(LAST in one.messages[-1].content for one in left(found))
    taught = distil([run], tmp_path / "taught", top=1.0, held_out=0.0, epochs=1)
    assert taught.examples["left"] == len(left(found))
    with pytest.raises(ConfigError, match=r"tools \(left, right\) can't be taught by preferences"):
        distil([run], tmp_path / "pairs", method="dpo")


def test_gold_that_an_agent_could_not_play_is_refused(wide: str, tmp_path: Path) -> None:
    asked = {**team(wide, tmp_path), "agents": {"left": {"max_calls": 1}}}
    examples([], config=asked, gold=True)
    more = TOOLED.replace('Said("eee", [call])', 'Said("eee", [call, call])')
    with pytest.raises(ConfigError, match=r"has 2 calls of left, which may make 1: raise agents"):
        examples([], config={**asked, **_placed(tmp_path / "more", more)}, gold=True)


def _placed(folder: Path, source: str) -> dict[str, Any]:
    return {"task_path": [str(letters.write_task(folder, source))]}


def test_what_a_gold_call_brings_to_light_is_no_secret(
    wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", KEY)
    source = TOOLED.replace("return len(text)", "import os; return os.environ['SOME_API_KEY']")
    found = examples([], config=team(wide, tmp_path, source.replace("> int", "> str")), gold=True)
    results = [m.content for one in left(found) for m in one.messages if m.role == "tool"]
    assert results
    assert not any(KEY in text for text in results)


def test_equal_moves_are_learned_once_whatever_ids_their_calls_have(
    wide: str, tmp_path: Path
) -> None:
    after = left(examples([], config=team(wide, tmp_path), gold=True))[1]
    said, result = after.messages[-2:]
    call = said.calls[0].model_copy(update={"id": "other"})
    told = said.model_copy(update={"calls": (call,)}), result.model_copy(update={"call": "other"})
    again = replace(after, messages=(*after.messages[:-2], *told))
    assert again != after
    assert each_once([after, again]) == [after]


def test_gold_whose_calls_have_effects_is_refused(wide: str, tmp_path: Path) -> None:
    source = TOOLED.replace("tools.tool(count, effects=False)", "count")
    with pytest.raises(ConfigError, match="count would have effects: learn from runs"):
        distil(config=team(wide, tmp_path, source), into=tmp_path / "taught", gold=True)
    assert not (tmp_path / "taught").exists()
