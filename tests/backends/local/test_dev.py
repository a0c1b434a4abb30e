"""What a run says of its learning: dev evaluations, updates that teach nothing, and what is at
fault where numbers are not finite.
"""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

import orchestry
from orchestry.backends.local.dev import empty_updates, leftover
from orchestry.cli.show import ending, figures
from orchestry.core.errors import ConfigError, LearnError, TaskError
from orchestry.engine.estimate import estimate
from orchestry.engine.evaluate import evaluate
from orchestry.engine.export import export
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.report.runs import Salvaged
from orchestry.store.checkpoints import best_evaluation
from orchestry.store.journal import Answered, Evaluated, RolledBack
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    EVERY,
    GROUP,
    ROLES,
    TASK,
    adapters,
    artefacts,
    config,
    learned,
    trainer,
    write_task,
)
from tests.journals import cut_before

pytestmark = pytest.mark.usefixtures("one_thread")
PROBLEMS = 3
SETS = (
    "episodes=24",
    "learn.every=4",
    "learn.evaluate_every=2",
    f"learn.evaluate_problems={PROBLEMS}",
    "learn.keep=1",
)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The letters, of which a trajectory with at least two e is called rich."""
    reward = "return self.score(quality=text.count('e') / max(1, len(text)))"
    rich = reward[:-1] + ", tags=('rich',) if text.count('e') > 1 else ())"
    source = TASK.replace(reward.replace("'e'", '"e"'), rich)
    assert source != TASK
    return write_task(tmp_path_factory.mktemp("tasks"), source)


@pytest.fixture(scope="module")
def watched(model: str, tagged: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six updates, evaluated after the second, the fourth and the sixth."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return orchestry.train(config(model, tagged, *SETS), folder)


def evaluations(run: Run) -> dict[int, Evaluated]:
    return {event.update: event for event in run.events if isinstance(event, Evaluated)}


def test_a_run_is_evaluated_before_its_first_update_and_after_every_second(watched: Run) -> None:
    found = evaluations(watched)
    assert list(found) == [0, 2, 4, 6]
    assert found[6].reward > found[0].reward + 0.2
    assert found[6].tags["rich"] > 0.5
    kinds = [event.kind for event in watched.events if event.kind in ("learned", "evaluated")]
    assert kinds == ["evaluated", *(3 * ["learned", "learned", "evaluated"])]
    calls = [event for event in watched.events if isinstance(event, Answered)]
    assert sum(event.purpose == "dev" for event in calls) == 4 * PROBLEMS * GROUP * len(ROLES)
    assert sum(event.purpose == "act" for event in calls) == 24 * GROUP * len(ROLES)


def test_the_best_checkpoint_stays_however_old_it_is(watched: Run) -> None:
    best = watched.summary.best_update
    scores = {update: found.reward for update, found in evaluations(watched).items() if update}
    assert best == max(scores, key=lambda update: scores[update])
    assert (watched.folder / f"checkpoints/{4 * best:06d}" / "optimizer.pt").exists()


def test_best_is_the_first_of_the_highest_and_never_the_beginning() -> None:
    def found(*rewards: float) -> list[Evaluated]:
        return [Evaluated(update=n, reward=r, tags={}, at=0.0) for n, r in enumerate(rewards)]

    assert best_evaluation(found(0.9, 0.2, 0.5, 0.5)) == found(0.9, 0.2, 0.5)[2]
    assert best_evaluation(found(0.9)) is None


def test_the_best_is_what_is_exported_and_evaluated_where_it_is_asked_for(
    model: str, tagged: Path, tmp_path: Path
) -> None:
    """A rate so high that the second update undoes the first."""
    sets = ("episodes=8", "learn.evaluate_every=1", "learn.learning_rate=1.0")
    run = orchestry.train(config(model, tagged, *SETS, *sets), tmp_path / "run")
    rewards = [event.reward for event in evaluations(run).values()]
    assert rewards[1] > rewards[2]
    assert run.summary.best_update == 1
    assert export(run.folder, tmp_path / "out", update="best").learned.update == 1
    found = evaluate(run, update="best")
    assert found.folder.name == "test--update-1"
    assert found.config["learn"]["from"] == str(run.folder / "checkpoints" / "000004")


def test_an_evaluation_of_update_0_plays_the_team_as_it_began(watched: Run) -> None:
    """The same problems with the same seeds as any other update is evaluated with."""
    first, last = evaluate(watched, update=0), evaluate(watched)
    assert first.folder.name == "test--update-0"
    assert first.config["learn"].get("from") is None
    assert [e.problem for e in first.episodes] == [e.problem for e in last.episodes]
    means = [run.summary.mean_trajectory_reward or 0.0 for run in (first, last)]
    assert means[1] > means[0] + 0.1


def test_what_learns_nothing_is_not_evaluated_on_dev(
    watched: Run, model: str, tagged: Path, tmp_path: Path
) -> None:
    """Neither an evaluation nor a run with learning off, whatever the config asks for."""
    idle = orchestry.train(
        config(model, tagged, *SETS, "episodes=4", "learn.enabled=false"), tmp_path / "idle"
    )
    for run in (evaluate(watched, split="dev", update=0), idle):
        assert not evaluations(run)
        calls = [event for event in run.events if isinstance(event, Answered)]
        assert {event.purpose for event in calls} == {"act"}
        assert run.summary.dev_rewards == {}


def test_an_evaluation_that_a_kill_cut_off_is_played_again_and_its_update_stays(
    watched: Run, tmp_path: Path
) -> None:
    folder = shutil.copytree(watched.folder, tmp_path / "run")
    cut_before(folder, "evaluated", 6)
    resumed = resume(folder)
    assert artefacts(folder) == artefacts(watched.folder)
    assert not [event for event in resumed.events if isinstance(event, RolledBack)]
    again, before = evaluations(resumed)[6], evaluations(watched)[6]
    assert again == before.model_copy(update={"at": again.at})


def test_a_fault_on_a_dev_problem_takes_no_update_back(model: str, tmp_path: Path) -> None:
    """The task breaks after the first evaluation; mended, the run goes on from its update."""
    flag = tmp_path / "broken"
    line = "        return state.problem.prompt\n"  # not an answer's fault, so the run stops
    guard = (
        f"        if 'dev' in state.problem.id and __import__('os').path.exists('{flag}'):\n"
        "            raise ValueError('on dev')\n"
    )
    source = TASK.replace(line, guard + line)
    assert source != TASK
    tasks = write_task(tmp_path / "tasks", source)
    sets = (*SETS, "learn.evaluate_every=1")
    run = orchestry.train(config(model, tasks, *sets, "episodes=4"), tmp_path / "run")
    flag.touch()
    with pytest.raises(TaskError, match="on dev"):
        resume(run.folder, {"episodes": 8})
    failed = load_run(run.folder)
    assert (len(learned(failed)), list(evaluations(failed))) == (2, [0, 1])
    flag.unlink()
    mended = resume(run.folder)
    assert (len(learned(mended)), list(evaluations(mended))) == (2, [0, 1, 2])
    assert not [event for event in mended.events if isinstance(event, RolledBack)]
    assert mended.summary.stopped == "done"


def panel(run: Run) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(figures(run.summary))
    return console.export_text()


def test_nothing_that_was_learned_depends_on_being_watched(
    watched: Run, model: str, tagged: Path, tmp_path: Path
) -> None:
    alone = orchestry.train(
        config(model, tagged, *SETS, "learn.evaluate_every=null"), tmp_path / "run"
    )
    assert alone.episodes == watched.episodes


def test_a_run_in_two_parts_evaluates_as_a_whole_one(
    watched: Run, model: str, tagged: Path, tmp_path: Path
) -> None:
    part = orchestry.train(config(model, tagged, *SETS, "episodes=10"), tmp_path / "run")
    resume(part.folder, {"episodes": 24})
    assert artefacts(part.folder) == artefacts(watched.folder)


def test_dev_is_evaluated_as_a_later_evaluation_finds_it(watched: Run) -> None:
    """Of the same weights on the same problems; only the seeds differ."""
    later = evaluate(watched, split="dev")
    found = fmean(episode.mean_leaf_reward for episode in later.episodes)
    assert later.summary.mean_trajectory_reward == pytest.approx(found)
    assert (later.summary.best_of_k or 0.0) > found
    assert found == pytest.approx(evaluations(watched)[6].reward, abs=0.2)


def test_the_dry_run_counts_the_evaluations(model: str, tagged: Path) -> None:
    calls = (24 + 4 * PROBLEMS) * GROUP * len(ROLES)
    assert estimate(config(model, tagged, *SETS)).calls == calls


def test_a_task_without_dev_problems_is_refused(model: str, tmp_path: Path) -> None:
    source = TASK.replace("for n in range(4)]", "for n in range(4) if split != 'dev']")
    tasks = write_task(tmp_path / "tasks", source)
    with pytest.raises(ConfigError, match="no dev problems to evaluate on: add some, or leave"):
        prepare(config(model, tasks, *SETS))


def test_a_resume_may_begin_to_evaluate(model: str, tasks: Path, tmp_path: Path) -> None:
    """Nothing that is learned depends on it."""
    whole = orchestry.train(config(model, tasks), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, "episodes=4"), tmp_path / "part")
    more = resume(part.folder, {"episodes": 8, "learn": {"evaluate_every": 1}})
    assert adapters(more.folder) == adapters(whole.folder)
    assert [e.update for e in more.events if isinstance(e, Evaluated)] == [1, 2]


class Heard(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_run_without_a_lesson_says_so_first_and_last_and_as_a_collapse_once(
    model: str, tmp_path: Path
) -> None:
    tie = TASK.replace("quality=text.count", "quality=0 * text.count")
    tasks, heard = write_task(tmp_path / "tasks", tie), Heard()
    sets = ("episodes=24", "learn.every=8", "learn.group_size=2", "sampling.max_tokens=2")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run", heard)
    said = "\n".join(heard.notes)
    assert [state.state["samples"] for state in learned(run)] == [0, 0, 0]
    assert said.count("nothing to learn from in this update: in every group") == 1
    assert "(reward 0.000); what helps: easier problems" in said
    assert said.count("warning after update 3: in all of the last 3 updates the samples") == 1
    assert "a higher sampling.max_tokens (now 2), or a start that can do some of them" in said
    assert "nothing was learned: none of the 3 updates" in said
    assert (run.summary.updates, run.summary.taught) == (3, 0)
    assert "done, and nothing was learned" in ending(run.summary)
    resume(run.folder, {"episodes": 32}, later := Heard())
    assert not any("in this update" in note for note in later.notes)  # which was said before
    assert not any(note.startswith("warning after") for note in later.notes)
    assert any("none of the 4 updates" in note for note in later.notes)
    assert [text[:23] for text in Salvaged(run.folder).collapses] == ["Warning after update 3:"]


@pytest.mark.slow
def test_a_team_that_settles_is_told_so_once_over_a_stop_too(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """At this rate all tokens become the letter that is paid; when, depends on the processor's
    rounding."""
    sets = ("learn.every=8", "learn.group_size=2", "learn.learning_rate=0.1")
    first, then = Heard(), Heard()
    run = orchestry.train(config(model, tasks, "episodes=48", *sets), tmp_path / "run", first)
    assert not any("entropy has halved" in note for note in first.notes)
    resume(run.folder, {"episodes": 184}, then)
    (told,) = [note for note in then.notes if "entropy has halved" in note]
    assert f"{told[8:]}." in [text[8:] for text in Salvaged(run.folder).collapses]
    assert re.search(r"(left|right) \d", told)
    assert "learn.learning_rate (now 0.1)" in told


def test_a_run_that_learns_is_simply_done(finished: Run) -> None:
    assert finished.summary.taught == finished.summary.updates == 2
    assert "nothing" not in ending(finished.summary)


@pytest.mark.parametrize(("reward", "fix"), [(0.0, "easier"), (1.0, "harder"), (0.5, "group_size")])
def test_the_advice_is_that_of_the_reward(reward: float, fix: str) -> None:
    (note,) = empty_updates([3, 0], reward, last=False)
    assert fix in note


def test_a_lesson_in_between_begins_the_count_anew() -> None:
    assert empty_updates([0, 0, 5], 0.5, last=False) == []
    assert empty_updates([0, 5, 0], 0.5, last=False) == []
    assert empty_updates([0, 5, 0], 0.5, last=True) == ["2 of 3 updates had nothing to learn from"]
    assert empty_updates([5, 0, 0, 0], 0.5, last=False) == []  # told as a collapse


def test_leftover_episodes_are_told_before_the_start(model: str, tasks: Path) -> None:
    assert leftover(2 * EVERY, EVERY) == []
    notes = prepare(config(model, tasks, "episodes=6")).backend.notes
    assert any(
        "last 2 of 6 episodes teach nothing" in n and "--episodes 4 or 8" in n for n in notes
    )
    none = prepare(config(model, tasks, "episodes=6", "learn.enabled=false")).backend.notes
    assert not any("teach nothing" in note for note in none)


def test_a_damaged_base_is_named_with_its_weight(model: str, tasks: Path, tmp_path: Path) -> None:
    base = shutil.copytree(model, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LearnError, match=r"base .* is damaged, its model\.norm\.weight .*fet"):
        orchestry.train(config(str(base), tasks), tmp_path / "run")


def test_a_damaged_adapter_is_named_by_its_agent(model: str, tasks: Path, tmp_path: Path) -> None:
    (adapters,) = (crew.adapters for crew in trainer(model).crews)
    adapters.parameters(1)[0].data[0, 0] = float("inf")
    adapters.save(tmp_path / "damaged")
    sets = (f"learn.from={tmp_path / 'damaged'}",)
    with pytest.raises(LearnError, match=r"the adapter of right holds NaN or infinity: begin"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [
        ("float32", r"finite \(.* 1e\+30\), and .* overflows float32: begin .* lower learn\.lea"),
        ("bfloat16", r"bfloat16 is too narrow: set learn\.dtype=float32"),
    ],
)
def test_sound_weights_that_overflow_are_told_apart(
    model: str, tasks: Path, tmp_path: Path, dtype: str, fix: str
) -> None:
    (adapters,) = (crew.adapters for crew in trainer(model).crews)
    for weight in adapters.parameters():
        weight.data.fill_(1e30)
    adapters.save(tmp_path / "large")
    sets = (f"learn.from={tmp_path / 'large'}", f"learn.dtype={dtype}")
    with pytest.raises(LearnError, match=fix) as caught:
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert "resume" not in str(caught.value)  # which would draw and compute the same again


def test_a_backend_that_was_not_opened_has_no_best_update(model: str, tasks: Path) -> None:
    backend = prepare(config(model, tasks, "learn.evaluate_every=1")).backend
    assert (backend.best_update, backend.dev_rewards) == (None, {})
