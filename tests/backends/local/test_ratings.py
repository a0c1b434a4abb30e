"""People's ratings in what a local run learns: in time, too late, and of other answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.ratings import hear, notes
from orchestry.core.types import ROOT, Part, Problem, Score, Trajectory, Tree
from orchestry.engine.run import resume
from orchestry.engine.session import Silent
from orchestry.judge.calibration import find, rated
from orchestry.store.journal import Rated
from orchestry.store.run import Run, Store
from tests.backends.letters import adapters, artefacts, config
from tests.journals import cut_before

pytestmark = pytest.mark.usefixtures("one_thread")


class Listener(Silent):
    """Remembers what the user was told."""

    def __init__(self) -> None:
        self.told = list[str]()

    def note(self, text: str) -> None:
        self.told.append(text)


def said(rating: float, node: str = "0.0", *, override: bool = False) -> Rated:
    return Rated(episode=0, node=node, rating=rating, override=override, at=0.0)


def rate(run: Run, episode: int, *ratings: float, override: bool = False) -> None:
    """Rates an episode's leaves in order."""
    record = next(record for record in run.episodes if record.episode == episode)
    with Store(run.folder) as store:
        for leaf, rating in zip(record.leaves(), ratings, strict=False):
            shown = find([record], episode, leaf.id)
            store.journal.append(rated(shown, rating, "", 0.0, override=override))


def leaf(score: float) -> Tree[None]:
    """One finished trajectory."""
    tree = Tree[None]()
    problem = Problem(id="p", prompt="p")
    tree.add(Trajectory(ROOT, problem, 0, None))
    end = Trajectory(ROOT.child(0), problem, 0, None)
    node = tree.add(
        Trajectory(end.id, problem, 0, None, score=Score(parts=(Part(name="q", value=score),)))
    )
    node.leaf = True
    return tree


@pytest.mark.parametrize(
    ("weight", "override", "number"),
    [(0.25, False, 0.75 * 0.4 + 0.25), (1.0, False, 1.0), (0.25, True, 1.0), (0.0, True, 1.0)],
)
def test_a_rating_has_the_judges_weight_and_an_override_all_of_it(
    weight: float, override: bool, number: float
) -> None:
    tree = leaf(0.4)
    assert hear(tree, {"0.0": said(1.0, override=override)}, weight) == 1
    judged = tree.nodes[ROOT.child(0)].judged
    assert judged is not None
    assert judged.number == pytest.approx(number)


def test_a_rating_without_weight_or_of_another_node_changes_nothing() -> None:
    tree = leaf(0.4)
    assert hear(tree, {"0.0": said(1.0), "0": said(1.0, "0", override=True)}, 0.0) == 0
    assert tree.nodes[ROOT.child(0)].judged is None
    (note,) = notes(2, 0, [], replays=True)
    assert "2 ratings of people are not learned from" in note
    assert "takes only ratings with --override" in note
    assert notes(1, 1, [], replays=False) == ["1 rating of people is in the returns"]


@pytest.mark.parametrize("override", [False, True])
def test_ratings_before_an_update_change_it_and_a_killed_one_is_taken_again_alike(
    model: str, tasks: Path, tmp_path: Path, finished: Run, override: bool
) -> None:
    """The run stops within its second block, whose episodes are played again on the resume."""
    part = orchestry.train(config(model, tasks, "episodes=6"), tmp_path / "part")
    rate(part, 4, 1.0, 0.0, 1.0, 0.0, override=override)
    watch = Listener()
    done = resume(part.folder, {"episodes": 8}, observer=watch)
    assert any("4 ratings of people are in the returns" in note for note in watch.told)
    mine, plain = adapters(done.folder), adapters(finished.folder)
    second = [name for name in plain if name.startswith("checkpoints/000008")]
    assert all(mine[name] != plain[name] for name in second)
    assert all(mine[name] == plain[name] for name in plain if name not in second)
    assert done.rewards == finished.rewards, "reports keep the task's own"
    killed = tmp_path / "killed"
    shutil.copytree(done.folder, killed)
    cut_before(killed, "learned", 2)
    resume(killed)
    assert artefacts(killed) == artefacts(done.folder)


def test_a_block_that_is_played_again_is_judged_as_the_first_time(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Though its own episodes were rated meanwhile, and a kill left only some of them."""
    judged = ("judge.enabled=true", "judge.provider.name=fake", "judge.weight=1", "episodes=6")
    part = orchestry.train(config(model, tasks, *judged), tmp_path / "part")
    before = [(node.value, node.judged) for node in part.episodes[5].nodes]
    rate(part, 4, 1.0, 1.0, 1.0, 1.0)
    done = resume(part.folder, {"episodes": 8})
    assert [(node.value, node.judged) for node in done.episodes[5].nodes] == before


@pytest.mark.slow
def test_a_rating_that_came_too_late_is_named_and_changes_nothing(
    model: str, tasks: Path, tmp_path: Path, finished: Run
) -> None:
    part = orchestry.train(config(model, tasks, "episodes=4"), tmp_path / "part")
    rate(part, 2, 1.0, override=True)
    command = [sys.executable, "-m", "orchestry", "rate", str(part.folder), "--episode", "2"]
    shown = subprocess.run(
        [*command, "--node", "0.1", "--rating", "0", "--override"],
        check=True,
        capture_output=True,
        text=True,
    )
    said = " ".join(shown.stdout.split())
    assert (
        "1 of 1 ratings change no weights: update 1 has learned from the episodes before 4" in said
    )
    watch = Listener()
    done = resume(part.folder, {"episodes": 8}, observer=watch)
    (note,) = [note for note in watch.told if "change nothing" in note]
    assert note.startswith("2 ratings came after the update that learned from their episodes (2)")
    assert adapters(done.folder) == adapters(finished.folder)


def test_a_rating_of_answers_that_were_not_drawn_again_does_not_count(
    model: str, tasks: Path, tmp_path: Path, finished: Run
) -> None:
    """Such as on a GPU, where an episode that is played again may get other answers."""
    part = orchestry.train(config(model, tasks, "episodes=6"), tmp_path / "part")
    leaf = next(part.episodes[5].leaves())
    with Store(part.folder) as store:
        store.journal.append(
            Rated(episode=5, node=leaf.id, rating=1.0, override=True, answers="other", at=0.0)
        )
    watch = Listener()
    done = resume(part.folder, {"episodes": 8}, observer=watch)
    assert any(note.startswith("1 of 1 ratings are not learned from") for note in watch.told)
    assert adapters(done.folder) == adapters(finished.folder)
