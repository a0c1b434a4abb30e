"""Local runs that stop and go on, to the last bit, and what others make of their adapters."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch")

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError, StoreError
from orchestry.engine.changes import config_digests
from orchestry.engine.estimate import estimate
from orchestry.engine.run import prepare, resume
from orchestry.store.journal import RolledBack
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    EVERY,
    TASK,
    artefacts,
    config,
    learned,
    settings,
    surprise,
    trainer,
    write_task,
)
from tests.backends.local.tiny import tiny_folder
from tests.engine.test_run import kill_at
from tests.journals import cut_before

pytestmark = pytest.mark.usefixtures("one_thread")


def test_answers_that_the_task_cant_digest_are_learned_from_as_0(
    model: str, tmp_path: Path
) -> None:
    """Such as hold an e."""
    odd = "if 'e' in ''.join(state.said): raise RecursionError('odd')\n        await asyncio"
    reward = ('text.count("e") / max(1, len(text))', "min(1, len(set(text)) / 50)")
    source = TASK.replace("await asyncio", odd).replace(*reward)
    sets = ("episodes=4", "learn.credit=replay", "learn.rewards=final")
    run = orchestry.train(
        config(model, write_task(tmp_path / "tasks", source), *sets), tmp_path / "run"
    )
    leaves = [leaf for episode in run.episodes for leaf in episode.leaves()]
    odd_ones = ["e" in "".join(turn.completion.text for turn in leaf.turns) for leaf in leaves]
    assert ["task_error" in leaf.score.tags for leaf in leaves] == odd_ones
    assert 0 < sum(odd_ones) < len(leaves)
    assert {leaf.value for leaf, odd in zip(leaves, odd_ones, strict=True) if odd} == {0.0}
    assert max(run.rewards) > 0.0
    assert len(learned(run)) == 1


LATER = {
    "": ("curriculum", "recipe"),
    "search": ("branch", "max_nodes"),
    "learn": (
        *("group_mean", "importance", "importance_of", "decay", "gae_lambda", "critic_rate"),
        *("top_k", "rslora", "targets", "keep_every"),
    ),
}
"""Config keys that runs of version 0.1 do not have."""


def test_a_run_that_lacks_later_keys_goes_on_as_it_was(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Its config.yaml names what was the default then, such as `rewards: turns`."""
    sets = ("learn.rewards=turns", "episodes=4")
    whole = orchestry.train(config(model, tasks, *sets[:1], "episodes=8"), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, *sets), tmp_path / "part")
    path = part.folder / "config.yaml"
    old = yaml.safe_load(path.read_text())
    for section, keys in LATER.items():
        for key in keys:
            del (old[section] if section else old)[key]
    path.write_text(yaml.safe_dump({**old, "learn": {**old["learn"], "rewards": "differences"}}))
    with pytest.raises(ConfigError, match=r"other contents of learn\.rewards"):
        resume(part.folder, {"episodes": 8})
    path.write_text(yaml.safe_dump(old))
    resumed = resume(part.folder, {"episodes": 8})
    found, wanted = artefacts(resumed.folder), artefacts(whole.folder)
    assert {**found, "config.yaml": ""} == {**wanted, "config.yaml": ""}


def test_the_default_that_changed_has_a_digest_of_its_own(model: str, tasks: Path) -> None:
    """Runs from before the change have none, and their others are the same."""
    then, now, other = (
        config_digests(config(model, tasks, f"learn.rewards={name}"))
        for name in ("turns", "differences", "final")
    )
    assert {name for name in now if now[name] != then[name]} == {"learn.rewards"}
    assert now["config"] != other["config"]


def test_resuming_with_more_episodes_equals_a_run_of_as_many(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """The first part ends in the middle of a block, whose episodes are played again."""
    whole = orchestry.train(config(model, tasks, "episodes=12"), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, "episodes=6"), tmp_path / "part")
    assert len(learned(part)) == 1
    assert part.episodes == whole.episodes[:6]
    resumed = resume(part.folder, {"episodes": 12})
    assert artefacts(resumed.folder) == artefacts(whole.folder)
    assert [e.episode for e in resumed.events if isinstance(e, RolledBack)] == [4]
    folder = "checkpoints/000012/optimizer.pt"
    states = [torch.load(run.folder / folder, weights_only=True) for run in (whole, resumed)]
    assert str(states[0]) == str(states[1])


GOING_ON = {
    "two steps an update": ("learn.epochs=2", "learn.clip=0.2"),
    "replays": ("learn.credit=replay", "learn.rewards=final"),
    "one adapter": ("learn.shared=true",),
    "dropout and KL": ("learn.dropout=0.1", "learn.kl=0.1"),
    "group sizes and problems by success": ("learn.group_size=auto", "curriculum=success"),
    "two bases": ("agents.right.model=OTHER",),
}


@pytest.mark.slow
@pytest.mark.parametrize("sets", GOING_ON.values(), ids=GOING_ON)
def test_a_run_in_two_parts_equals_a_whole_one_with_every_option(
    sets: tuple[str, ...], model: str, tasks: Path, tmp_path: Path
) -> None:
    other = str(tiny_folder(tmp_path / "other", "qwen2", seed=1))
    sets = tuple(item.replace("OTHER", other) for item in sets)
    whole = orchestry.train(config(model, tasks, *sets, "episodes=12"), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, *sets, "episodes=6"), tmp_path / "part")
    resume(part.folder, {"episodes": 12})
    assert artefacts(part.folder) == artefacts(whole.folder)
    assert len(learned(whole)) == 3


def test_resuming_what_is_finished_plays_nothing_again(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks, "episodes=6"), tmp_path / "run")
    again = resume(run.folder)
    assert again.summary.calls == run.summary.calls
    assert again.episodes == run.episodes
    assert not [event for event in again.events if isinstance(event, RolledBack)]


@pytest.mark.slow
def test_a_run_killed_within_a_block_goes_on_as_if_it_had_not_been(
    model: str, tmp_path: Path
) -> None:
    """A reward takes the longer the higher the problem's number, so a block is committed bit by
    bit; the kill comes when the second block's first episode is."""
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.3"))
    sets = settings(model, tasks, "episodes=12")
    plan = prepare(resolve([], sets))
    assert plan.problem(EVERY).id != "train-3"
    whole = orchestry.train(resolve([], sets), tmp_path / "whole")
    folder = tmp_path / "killed"
    words = [word for item in sets for word in ("--set", item)]
    kill_at(
        f'"committed","episode":{EVERY}'.encode(), folder, "run", "--run-dir", str(folder), *words
    )
    killed = load_run(folder)
    assert len(learned(killed)) == 1
    assert EVERY < len(killed.episodes) < 2 * EVERY
    kill_at(b'"learned","update":2', folder, "resume", str(folder))
    assert len(learned(load_run(folder))) == 2
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)


@pytest.mark.slow
def test_a_run_killed_after_its_first_update_goes_on_as_if_it_had_not_been(
    model: str, tmp_path: Path
) -> None:
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.1"))
    sets = settings(model, tasks, "episodes=12", "learn.keep=1")
    whole = orchestry.train(resolve([], sets), tmp_path / "whole")
    folder = tmp_path / "killed"
    words = [word for item in sets for word in ("--set", item)]
    kill_at(b'"learned","update":1', folder, "run", "--run-dir", str(folder), *words)
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)


def test_an_update_that_was_not_journaled_is_made_again(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """A kill between the checkpoint and its line in the journal, at keep=1."""
    whole = orchestry.train(config(model, tasks, "learn.keep=1"), tmp_path / "whole")
    expected = artefacts(whole.folder)
    cut_before(whole.folder, "learned", 2)
    resumed = resume(whole.folder)
    assert artefacts(resumed.folder) == expected


def test_checkpoints_are_kept_at_an_interval(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = ("episodes=12", "learn.keep=1", "learn.keep_every=2")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    every = int(run.config["learn"]["every"])
    updates = 12 // every
    kept = sorted(int(place.name) // every for place in (run.folder / "checkpoints").iterdir())
    assert kept == sorted({*range(2, updates + 1, 2), updates - 1, updates})
    assert orchestry.evaluate(run, "dev", update=2).summary.stopped == "done"
    with pytest.raises(ConfigError, match=r"of update 1 is gone .* learn.keep_every-th"):
        orchestry.evaluate(run, "dev", update=1)


def test_an_episode_whose_weights_are_gone_is_not_played_by_others(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks), tmp_path / "run")
    path = run.folder / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(StoreError, match=r"lacks episode 1, and the weights .* are gone: restore"):
        resume(run.folder)


@pytest.mark.slow
def test_an_evaluation_plays_the_test_split_with_the_last_adapters(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks), tmp_path / "run")
    found = orchestry.evaluate(run)
    assert found.folder == run.folder / "evaluations" / "test--update-2"
    assert [e.problem for e in found.episodes] != []
    assert {episode.problem for episode in found.episodes} == {f"test-{n}" for n in range(4)}
    last = run.folder / "checkpoints" / "000008"
    assert (found.config["learn"]["enabled"], found.config["learn"]["from"]) == (False, str(last))
    assert not learned(found)
    assert not (found.folder / "checkpoints").exists()
    assert surprise(trainer(model, last), found.episodes[0]) < 1e-4
    assert surprise(trainer(model), found.episodes[0]) > 1e-2
    assert found.summary.cost_usd == 0.0
    again = orchestry.evaluate(run)
    assert (again.episodes, again.summary.calls) == (found.episodes, found.summary.calls)
    resume(run.folder, {"episodes": 3 * EVERY})
    later = orchestry.evaluate(run.folder)
    assert later.folder.name == "test--update-3"
    assert later.config["learn"]["from"] == str(run.folder / "checkpoints" / "000012")


def test_a_run_without_an_update_is_evaluated_as_it_began(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    run = orchestry.train(config(model, tasks, "episodes=2"), tmp_path / "run")
    found = orchestry.evaluate(run)
    assert found.folder.name == "test"
    assert found.config["learn"]["from"] is None
    assert surprise(trainer(model), found.episodes[0]) < 1e-4


def test_a_run_starts_from_another_ones_adapters(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    """And keeps them, so that it does not matter what becomes of the other run's checkpoints."""
    last = finished.folder / "checkpoints" / "000008"
    source = shutil.copytree(last, tmp_path / "source")
    sets = (f"learn.from={source}", "learn.learning_rate=0.5")
    whole = orchestry.train(config(model, tasks, *sets, "episodes=4"), tmp_path / "whole")
    run = orchestry.train(config(model, tasks, *sets, "episodes=2"), tmp_path / "run")
    shutil.rmtree(source)
    assert surprise(trainer(model, last), run.episodes[0]) < 1e-4
    resumed = resume(run.folder, {"episodes": 4})
    assert artefacts(resumed.folder) == artefacts(whole.folder)
    found = orchestry.evaluate(resumed, update=0)
    assert found.config["learn"]["from"] == str(run.folder / "start")
    assert surprise(trainer(model, last), found.episodes[0]) < 1e-4
    assert not (found.folder / "start").exists()


def test_adapters_of_another_base_are_refused(finished: Run, tasks: Path, tmp_path: Path) -> None:
    other = str(tiny_folder(tmp_path / "other", "qwen2"))
    sets = ("episodes=2", f"learn.from={finished.folder / 'checkpoints' / '000008'}")
    with pytest.raises(ConfigError, match=r"was trained on another base than .*other .*it names "):
        orchestry.train(config(other, tasks, *sets), tmp_path / "run")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("nowhere", "nowhere is not a folder here: give a checkpoint, .*RUN/checkpoints/000020"),
        ("checkpoints", "checkpoints holds no adapters: .* such as .*/checkpoints/000008$"),
        ("checkpoints/000008/left", "left holds no adapters: .* such as .*/checkpoints/000008$"),
        ("", "run holds no adapters: .* such as .*/checkpoints/000008$"),
        ("config.yaml", r"config\.yaml is not a folder here"),
    ],
)
def test_what_is_no_checkpoint_is_named_before_anything_is_written(
    source: str, found: str, finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("episodes=2", f"learn.from={finished.folder / source}")
    for start in (lambda one: orchestry.train(one, tmp_path / "new"), estimate):
        with pytest.raises(ConfigError, match=found) as caught:
            start(config(model, tasks, *sets))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_of_another_team_is_named_and_costs_nothing(
    finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    """The run directory stays free for the run that names another."""
    given = shutil.copytree(finished.folder / "checkpoints" / "000008", tmp_path / "another team")
    (given / "left").rename(given / "up")
    with pytest.raises(
        ConfigError, match=r"of right, up, and none of left: say .* learn\.roles\.left=right"
    ) as caught:
        orchestry.train(config(model, tasks, f"learn.from={given}"), tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    assert len(orchestry.train(config(model, tasks, "episodes=2"), tmp_path / "new").episodes) == 2


def test_a_run_goes_on_at_another_rate_and_with_nothing_that_would_change_its_past(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    part = orchestry.train(config(model, tasks, "episodes=4"), tmp_path / "run")
    for changes in ({"learn": {"group_size": 2}}, {"seed": 1}, {"behaviors": {"enabled": True}}):
        with pytest.raises(ConfigError, match="can't be changed on a resume"):
            resume(part.folder, changes)
    more = resume(part.folder, {"episodes": 8, "learn": {"learning_rate": 0.0}})
    assert [state.state["rate"] for state in learned(more)] == [0.03, 0.0]


@pytest.mark.slow
def test_a_longer_run_does_not_warm_up_again(model: str, tasks: Path, tmp_path: Path) -> None:
    part = orchestry.train(config(model, tasks, "episodes=4", "learn.every=1"), tmp_path / "run")
    more = resume(part.folder, {"episodes": 44})
    assert {state.state["rate"] for state in learned(more)} == {0.03}
