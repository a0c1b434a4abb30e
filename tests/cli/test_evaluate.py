"""`orchestry evaluate`: samples, and the team beside itself as its run began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import FAKE, CommandLine


def test_samples_are_played_beside_the_search(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "r").code == 0
    found = cli("evaluate", "r", "--samples", "3", "--json")
    plain = json.loads(found.out)
    assert (plain["strategy"], plain["leaves"], plain["episodes"]) == ("chains", 15, 5)
    assert "untrained" not in plain  # nothing was learned: it is that team
    assert cli("evaluate", "r", "--samples", "0").code == 2
    assert [p.name for p in Path("r/evaluations").iterdir()] == ["test--samples-3"]


def test_another_task_is_played_by_the_agents_of_a_map(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "r").code == 0
    args = ("evaluate", "r", "--task", "lines", "--samples", "1", "--episodes", "2")
    found = cli(*args, "--map", "writer=author", "--set", "options.most=20", "--json")
    plain = json.loads(found.out)
    assert (plain["task"], plain["episodes"]) == ("lines", 2)
    assert (
        "author is played by writer, reviewer is played by reviewer, printer plays untrained"
        in (found.err)
    )
    cli(*args, "--map", "writer").failed(2, "'writer' is not A=B")
    cli(*args, "--map", "writer=author", "--map", "reviewer=author").failed(2, "can't both play")
    cli("evaluate", "r", "--set", "learn.rank=2").failed(2, "options.NAME")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The settings of a local run on a tiny model."""
    pytest.importorskip("transformers")
    from tests.backends.letters import TASK, settings, write_task
    from tests.backends.local.tiny import tiny_folder

    folder = tmp_path_factory.mktemp("local")
    tasks = write_task(folder / "tasks", TASK)
    items = settings(str(tiny_folder(folder / "tiny")), tasks)
    return [word for item in items for word in ("--set", item)]


@pytest.fixture
def learned(cli: CommandLine, sets: list[str]) -> Path:
    """A run of two updates."""
    assert cli("run", *sets, "--run-dir", "r").code == 0
    return Path("r")


@pytest.mark.slow
def test_a_team_that_learned_is_compared_with_itself_as_it_began(
    cli: CommandLine, learned: Path
) -> None:
    found = cli("evaluate", learned, "--samples", "4", "--json")
    assert found.code == 0
    plain = json.loads(found.out)
    began = plain["untrained"]
    apart = plain["mean_trajectory_reward"] - began["mean_trajectory_reward"]
    assert plain["difference"]["mean"] == pytest.approx(apart)
    assert (plain["difference"]["problems"], plain["difference"]["of"]) == (4, "reward")
    names = {path.name for path in (learned / "evaluations").iterdir()}
    assert names == {"test--update-2--samples-4", "test--update-0--samples-4"}
    assert f"the team as update 2 left it: {learned}/checkpoints/000008" in found.err
    assert f"the team as {learned} began" in found.err
    shown = cli("evaluate", learned, "--samples", "4")
    assert "update 2" in shown.out
    said = " ".join(shown.out.split())
    assert "reward, update 2 minus as the run began: +" in said
    assert "(rewards are from 0 to 1; 95 % interval over 4 common problems: [" in said
    assert "cached answers count as they would cost" in said
    assert "inconclusive: at least 6 problems are needed" in said
    alone = cli("evaluate", learned, "--split", "dev", "--no-compare", "--json")
    assert "untrained" not in json.loads(alone.out)
    assert {path.name for path in (learned / "evaluations").iterdir()} == names | {"dev--update-2"}


def test_the_beginning_has_nothing_to_be_compared_with(cli: CommandLine, learned: Path) -> None:
    found = cli("evaluate", learned, "--update", "0", "--json")
    assert "untrained" not in json.loads(found.out)


@pytest.mark.slow
def test_baselines_of_a_local_run_are_untrained(cli: CommandLine, learned: Path) -> None:
    assert cli("evaluate", learned, "--samples", "4", "--json").code == 0
    found = cli("baselines", "run", "all", "--of", learned, "--samples", "4", "--json")
    assert found.code == 0, found.err
    rewards = {
        name: one["reward"]["mean"] for name, one in json.loads(found.out)["baselines"].items()
    }
    first = json.loads(cli("evaluate", learned, "--samples", "4", "--json").out)
    began = first["untrained"]["mean_trajectory_reward"]
    # its agents act at once, once, and see nothing: these are the untrained team itself
    assert rewards["best_of_n"] == rewards["concat"] == pytest.approx(began)
    assert first["mean_trajectory_reward"] != pytest.approx(began)


@pytest.mark.slow
def test_a_local_run_is_reported_with_its_checkpoint_and_updates(
    cli: CommandLine, learned: Path
) -> None:
    pytest.importorskip("matplotlib")
    assert cli("evaluate", learned, "--samples", "4").code == 0
    found = cli("report", learned)
    assert found.code == 0, found.err
    text = (learned / "report" / "RESULTS.md").read_text()
    assert "checkpoints/000008" in text
    assert "The team after update 2 earns" in text
    assert "updates taken" in text
    names = {path.name for path in (learned / "report" / "figures").glob("*.png")}
    assert {"rewards-letters.png", "comparison-letters.png"} <= names
    assert '"checkpoint":"checkpoints/000008"' in (learned / "report" / "index.html").read_text()
