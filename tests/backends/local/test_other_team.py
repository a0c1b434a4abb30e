"""Adapters of one team play, and start, a team with other roles."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file

import orchestry
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.trainer import Trainer
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member
from orchestry.engine.evaluate import compared, evaluate
from orchestry.engine.run import prepare, resume
from orchestry.store.run import Run
from tests.backends.letters import TASK, artefacts, settings, turns

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
ROLES = ("up", "right", "down")
GLYPHS = TASK.replace('("left", "right")', str(ROLES)).replace("letters", "glyphs")


@pytest.fixture
def both(tasks: Path, tmp_path: Path) -> Path:
    """The folder of both tasks."""
    place = Path(shutil.copytree(tasks, tmp_path / "tasks"))
    (place / "glyphs").mkdir()
    (place / "glyphs" / "task.py").write_text(GLYPHS)
    return place


@pytest.fixture
def run(finished: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(finished.folder, tmp_path / "run")))


def on_glyphs(model: str, tasks: Path, *more: str) -> Any:
    return resolve([], [*settings(model, tasks), "task=glyphs", *more])


def gaps(
    run: Run, model: str, checkpoint: Path, roles: Mapping[str, str | None]
) -> dict[str, float]:
    """By role, the largest gap between the log-probabilities recorded and those of the checkpoint's
    weights, played so."""
    learn = LearnConfig.model_validate({"threads": 1, "rank": 4, "alpha": 8})
    team = {role: Member(role, role[0], model, 8, temperature=0.8) for role in ROLES}
    made = Trainer(team, learn, 1, 0, warn=print)
    made.start_from(checkpoint, roles=roles)
    found, (crew,) = dict.fromkeys(ROLES, 0.0), made.crews
    for turn in (turn for one in run.episodes for turn in turns(one)):
        tokens = turn.completion.tokens
        assert tokens is not None
        packed = Packed(ROLES.index(turn.agent), tokens.prompt_ids, (tokens.ids,))
        with torch.no_grad():
            (logprobs,) = completion_logprobs(crew.base, crew.adapters, [packed], 0.8)
        gap = float((logprobs - torch.tensor(tokens.logprobs)).abs().max())
        found[turn.agent] = max(found[turn.agent], gap)
    return found


def test_an_adapter_plays_the_role_that_it_is_given(run: Run, model: str, both: Path) -> None:
    asked: dict[str, Any] = {"task": "glyphs", "roles": {"up": "left"}, "task_path": [both]}
    found, began = compared(run, **asked)
    assert began is not None
    assert found.config["learn"]["roles"] == {"up": "left", "right": "right", "down": None}
    assert (found.summary.task, found.config["learn"]["enabled"]) == ("glyphs", False)
    last = run.folder / "checkpoints" / "000008"
    exact = gaps(found, model, last, {"up": "left", "right": "right", "down": None})
    assert max(exact.values()) < 1e-4
    swapped = gaps(found, model, last, {"up": "right", "right": "left", "down": "left"})
    assert min(swapped.values()) > 1e-3
    bare = gaps(began, model, last, dict.fromkeys(ROLES))
    assert max(bare.values()) < 1e-4
    assert began.config["learn"]["from"] is None
    again = resume(found.folder)
    assert (again.rewards, len(again.events)) == (found.rewards, len(found.events) + 2)


def test_a_run_starts_with_the_adapters_of_other_roles_and_goes_on(
    run: Run, model: str, both: Path, tmp_path: Path
) -> None:
    last = run.folder / "checkpoints" / "000008"
    asked = (f"learn.from={last}", "learn.roles={up: left, down: null}")
    plan = prepare(on_glyphs(model, both, *asked))
    assert [note for note in plan.backend.notes if "fresh" in note] == [
        "learn.from: down starts fresh"
    ]
    whole = orchestry.train(on_glyphs(model, both, *asked), tmp_path / "whole")
    part = orchestry.train(on_glyphs(model, both, *asked, "episodes=4"), tmp_path / "part")
    shutil.rmtree(run.folder)  # the new run has a copy
    assert artefacts(resume(part.folder, {"episodes": 8}).folder) == artefacts(whole.folder)

    found = evaluate(whole, update=0)
    assert found.config["learn"]["roles"] is None
    assert found.config["learn"]["from"] == str(whole.folder / "start")


def test_the_copy_that_a_run_starts_with_holds_what_the_roles_took(
    run: Run, model: str, both: Path, tmp_path: Path
) -> None:
    last = run.folder / "checkpoints" / "000008"
    asked = (f"learn.from={last}", "learn.roles={up: left}", "episodes=4")
    new = orchestry.train(on_glyphs(model, both, *asked), tmp_path / "new")

    def weights(place: Path) -> dict[str, Any]:
        return dict(load_file(place / "adapter_model.safetensors"))

    for role, agent in (("up", "left"), ("right", "right")):
        mine, theirs = weights(new.folder / "start" / role), weights(last / agent)
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    fresh = weights(new.folder / "start" / "down")
    assert all(not tensor.any() for key, tensor in fresh.items() if "lora_B" in key)


def test_one_adapter_of_all_agents_plays_every_role(model: str, both: Path, tmp_path: Path) -> None:
    sets = ("learn.shared=true", "episodes=4")
    run = orchestry.train(resolve([], [*settings(model, both), *sets]), tmp_path / "run")
    found = evaluate(run, task="glyphs", episodes=1)
    assert (found.config["learn"]["roles"], found.config["learn"]["shared"]) == (None, True)
    assert {turn.agent for one in found.episodes for turn in turns(one)} == {*ROLES}
    with pytest.raises(ConfigError, match="one adapter plays every role"):
        evaluate(run, task="glyphs", roles={"up": "left"})


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            [],
            r"holds weights of left, right, and none of up, down: say .* learn\.roles\.up=left \(",
        ),
        (["learn.roles={up: lft}"], r"left, right, and learn\.roles names lft: name one of these"),
        (
            ["learn.roles={up: left}", "learn.from=null"],
            r"learn\.roles is of the agents in learn\.f",
        ),
        (["learn.roles={up: left}", "learn.shared=true"], r"leave out learn\.roles"),
    ],
)
def test_roles_that_do_not_fit_are_refused(
    sets: list[str], said: str, run: Run, model: str, both: Path
) -> None:
    last = run.folder / "checkpoints" / "000008"
    with pytest.raises(ConfigError, match=said):
        prepare(on_glyphs(model, both, f"learn.from={last}", *sets))


def test_a_search_over_trained_weights_plays_another_task(
    run: Run, both: Path, tmp_path: Path
) -> None:
    """Its answers are not cached, since a cached one does not tell whose adapter gave it."""
    team = f"provider.name=local:{run.folder}"
    asked = ("backend=api", team, f"task_path=[{both}]", "episodes=1")
    searched = orchestry.train(resolve([], [*asked]), tmp_path / "searched")
    found = evaluate(searched, task="glyphs", roles={"up": "left"}, episodes=1)
    other = evaluate(searched, task="glyphs", roles={"up": "right"}, episodes=1)
    assert found.config["learn"]["roles"] == {"up": "left", "right": "right", "down": None}
    assert found.config["cache"]["enabled"] is False
    assert found.summary.cache_hits == other.summary.cache_hits == 0
    texts = [
        [t.completion.text for one in each.episodes for t in turns(one) if t.agent == "up"]
        for each in (found, other)
    ]
    assert texts[0] != texts[1]
