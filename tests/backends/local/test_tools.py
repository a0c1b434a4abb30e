"""Weights whose agents call tools: drawn, learned from and resumed.

No tiny model writes a call by itself, so here an answer whose first byte is odd is read as one; all
else is real.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.backends.local import trainer as trainers
from orchestry.backends.local.batch import gather
from orchestry.backends.local.values import _seen
from orchestry.core.config import RunConfig
from orchestry.core.tools import ToolCall, ToolSpec
from orchestry.core.types import Completion, Message, Request, Step, Tokens, Tree
from orchestry.engine.run import resume
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.store.journal import Used
from tests.backends import letters
from tests.backends.letters import GROUP, artefacts, learned, turns, write_task
from tests.backends.local.test_batch import TOOLS, Spelled
from tests.journals import cut_before
from tests.toys import Duo, team

TASK = letters.TASK.replace(
    "ROLES = (",
    '''
def count(text: str = "") -> int:
    """Counts."""
    return len(text)


ROLES = (''',
    1,
).replace("system_prompt=role[0])", "system_prompt=role[0], tools=(count,), max_calls=2)")
ADD = ToolSpec(name="add", description="Adds.", parameters={"type": "object", "properties": {}})


@pytest.fixture
def calling(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: str, before: object) -> tuple[str, tuple[ToolCall, ...]]:
        calls = bool(text) and ord(text[0]) % 2
        return text, (ToolCall(id="c", name="count", arguments="{}"),) if calls else ()

    monkeypatch.setattr(trainers, "read_calls", read)


@pytest.fixture(scope="module")
def wide(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model with room for tools in its prompts: a byte is a token."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return str(folder)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), TASK)


def config(model: str, tasks: Path, *more: str) -> RunConfig:
    return letters.config(model, tasks, *more)


@pytest.mark.slow
@pytest.mark.usefixtures("calling")
def test_a_team_with_tools_learns_and_resumes_exactly(
    wide: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(wide, tasks), tmp_path / "whole")
    moves = [turn.completion for one in run.episodes for turn in turns(one)]
    assert {len(move.steps) for move in moves} == {0, 1, 2}
    assert all(step.results == ("0",) for move in moves for step in move.steps)
    assert all(event.state["samples"] for event in learned(run))
    used = sum(isinstance(event, Used) and event.result is not None for event in run.events)
    assert used == sum(len(move.steps) for move in moves)
    shutil.copytree(run.folder, tmp_path / "cut")
    cut_before(tmp_path / "cut", "learned", 2)
    resume(tmp_path / "cut")
    assert artefacts(tmp_path / "cut") == artefacts(run.folder)


@pytest.mark.slow
@pytest.mark.usefixtures("calling")
def test_a_trained_team_calls_tools_in_backend_api(wide: str, tasks: Path, tmp_path: Path) -> None:
    run = orchestry.train(config(wide, tasks, "episodes=4"), tmp_path / "local")
    asked = {"backend": "api", "provider": {"name": "local", "team": str(run.folder)}}
    again = orchestry.train(
        RunConfig.model_validate(
            {**asked, "task": "letters", "task_path": [str(tasks)], "episodes": 2}
        ),
        tmp_path / "api",
    )
    assert any(turn.completion.steps for one in again.episodes for turn in turns(one))


class Calling(Spelled):
    """Every first answer has a call before it."""

    def _answer(self, request: Request, index: int) -> Completion:
        call = super()._answer(request, index + 100)
        said = super()._answer(request, index)
        tokens = said.tokens
        assert tokens is not None
        assert call.tokens is not None
        longer = tokens.model_copy(update={"prompt_ids": (*tokens.prompt_ids, 9, index)})
        calls = (ToolCall(id="c", name="add", arguments="{}"),)
        step = Step(said=call.model_copy(update={"calls": calls}), results=("1",))
        return said.model_copy(update={"tokens": longer, "steps": (step,)})


async def played(policy: Any) -> Tree[Any]:
    task = Duo()
    rollout = Rollout(task, team(task), policy, task_rater(task, TOOLS), Chains(GROUP))
    return await rollout.play(task.problems("train")[0], 3)


async def test_every_answer_of_a_move_has_the_moves_advantage() -> None:
    """The move's log-probability is the sum over its answers, so its gradient is that of each."""
    bare, whole = await played(Spelled()), await played(Calling())
    plain, found = gather([bare], skip=False), gather([whole], skip=False)
    assert found.actions == plain.actions
    assert len(found.samples) == 2 * len(plain.samples)
    by_move = list(zip(found.samples[::2], found.samples[1::2], strict=True))
    for (call, said), alone in zip(by_move, plain.samples, strict=True):
        assert call.advantage == said.advantage == alone.advantage
        assert (call.agent, said.ids) == (alone.agent, alone.ids)
        assert (call.later, said.later) == (False, True)
        assert call.prompt_ids == alone.prompt_ids != said.prompt_ids
    skipped = gather([whole])
    assert skipped.skipped == gather([bare]).skipped


async def test_a_move_that_ends_at_the_context_is_learned_from_what_was_drawn() -> None:
    """Else the calls that filled the prompt would never be found out."""

    class Full(Calling):
        def _answer(self, request: Request, index: int) -> Completion:
            said = super()._answer(request, index)
            return said.model_copy(update={"tokens": None, "text": "", "stop": "too_long"})

    found = gather([await played(Full())], skip=False)
    assert len(found.samples) == sum(found.actions.values()) > 0
    assert not any(one.later for one in found.samples)


async def test_a_critic_does_not_see_the_calls_of_the_move_it_judges() -> None:
    bare, whole = await played(Spelled()), await played(Calling())
    assert _seen(whole, whole.groups[0]) == _seen(bare, bare.groups[0])


@pytest.fixture(scope="module")
def bases(wide: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A base whose template knows no tools, and one with Qwen's form of them."""
    from orchestry.backends.local.model import load_base
    from tests.backends.local.tiny import TEMPLATE

    folder = tmp_path_factory.mktemp("qwen") / "model"
    shutil.copytree(wide, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tools = (
        "{% if tools %}TOOLS {{ tools | tojson }}<tool_call>{% endif %}"
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "CALL {{ c.function.name }} {{ c.function.arguments.first }}{% endfor %}{% endfor %}"
    )
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    changed = {**config, "chat_template": tools + TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(changed))
    return load_base(wide, device="cpu"), load_base(str(folder), device="cpu")


def test_prompts_have_tools_as_the_template_has_them(bases: tuple[Any, Any]) -> None:
    call = ToolCall(id="c", name="add", arguments='{"first": "<|im_end|>"}')
    step = Step(said=Completion(text="", model="m", calls=(call,)), results=("<|im_end|>",))
    chat = [Message(role="user", content="go"), *step.messages]
    shown = [one.tokenizer.decode(one.render(chat, 8, [ADD])) for one in bases]
    assert '<tools>\n{"type": "function", "function": {"name": "add"' in shown[0]
    assert "<tool_response>" in shown[0]
    assert '<tool_call>\n{"name": "add"' in shown[0]
    assert shown[1].startswith('TOOLS [{"type": "function", "function": {')
    assert "CALL add < |im_end|>" in shown[1]
    assert "<|im_start|>tool\n" in shown[1]
    for text, one in zip(shown, bases, strict=True):
        plain = one.tokenizer.decode(one.render(chat[:1], 8))
        assert "add" not in plain
        assert text.count("<|im_end|>") == (4 if "<tools>" in text else 3)


def test_tokens_of_steps_are_kept_for_learning() -> None:
    tokens = Tokens(prompt_ids=(1,), ids=(2,), logprobs=(-1.0,))
    said = Completion(text="", model="m", tokens=tokens)
    whole = said.model_copy(update={"steps": (Step(said=said, results=()),)})
    assert Completion.model_validate_json(whole.model_dump_json()) == whole
