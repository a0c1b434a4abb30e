"""Reports of runs of backend ppo: what they say is what progress.jsonl has."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestry
from orchestry.report import neural, page
from orchestry.report.criteria import criteria
from orchestry.report.curves import Curve
from orchestry.report.document import results, write_report
from orchestry.report.figures import draw_returns, draw_training
from orchestry.report.headline import headline, summary
from orchestry.report.lessons import lessons
from orchestry.report.runs import Arm, Salvaged, arms, read_experiments
from orchestry.report.style import look
from orchestry.report.text import short
from orchestry.store.games import FILE, Evaluation, Mean, Team, keep
from orchestry.store.progress import PROGRESS, Row, progress
from orchestry.store.run import Run
from tests.report.browser import CHROMIUM, browser
from tests.report.test_document import READER, headings, widths
from tests.report.test_page import Page

pytest.importorskip("matplotlib")
pytest.importorskip("numba")
SMALL = {"games": 16, "horizon": 8, "minibatch": 128, "checkpoint_every": 600, "keep": 2}
SECTIONS = ["Summary", "What worked and what did not", "Configuration", "Learning curves"]
SECTIONS += ["Last figures", "Checkpoints", "Cost"]
ENDS = ["What failed", "How to make this again"]


def plain(seed: int = 0, scenario: str = "hard", **ppo: Any) -> dict[str, Any]:
    return {
        "backend": "ppo",
        "task": "bucket_brigade",
        "seed": seed,
        "options": {"scenario": scenario},
        "ppo": {**SMALL, "device": "cpu", **ppo},
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Real runs, only read: two seeds, another scenario with an opponent, one in which no game
    ended, and one that Ctrl-C ended."""
    import torch

    threads, root = torch.get_num_threads(), tmp_path_factory.mktemp("ppo")
    tests: dict[str, Any] = {"evaluate_every": 1000, "evaluate_games": 4}
    configs = {
        "seed-0": plain(0, steps=6000, **tests),
        "seed-1": plain(1, steps=6000, **tests),
        "riders": {
            **plain(scenario="rest_trap", steps=2000),
            "agents": {"agent_3": {"plays": "free_rider"}, "agent_2": {"plays": ["guard", "self"]}},
        },
        "none": plain(steps=64, horizon=2, minibatch=32),
    }
    for name, config in configs.items():
        orchestry.train(config, root / name)
    interrupted(plain(steps=50_000_000), root / "cut")
    yield {path.name: path for path in root.iterdir()}
    torch.set_num_threads(threads)


def interrupted(config: dict[str, Any], folder: Path) -> None:
    """Plays until the third batch; then this process gets a Ctrl-C."""

    def press() -> None:
        end = time.monotonic() + 60
        while len(progress(folder)) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    orchestry.train(config, folder)
    thread.join()


def by_hand(rows: list[Row], name: str, end: int, smooth: int) -> float:
    """The mean over the games of the last batches up to the one at `end`."""
    sums = games = 0.0
    for place in range(end + 1 - smooth, end + 1):
        before = rows[place - 1]["train/total_episodes"] if place else 0
        ended = rows[place]["train/total_episodes"] - before
        games += ended
        sums += ended * rows[place].get(name, 0)
    return sums / games


def arm(*folders: Path) -> Arm:
    (found,) = arms(read_experiments(folders))
    return found


def curve(name: str, *folders: Path) -> Curve:
    found = neural.curve(arm(*folders).learners, name)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_point_of_the_return_is_the_mean_over_the_games_of_the_last_batches(
    folders: dict[str, Path],
) -> None:
    rows, smooth = progress(folders["seed-0"]), 47 // 20
    found = curve(neural.RETURN, folders["seed-0"])
    assert len(rows) == 47
    assert found.x == tuple(int(row["steps"]) for row in rows[-len(found.x) :])
    places = range(len(rows) - len(found.x), len(rows))
    own = [by_hand(rows, "episode/reward", place, smooth) for place in places]
    assert found.mean == pytest.approx(own)
    assert found.low == found.mean == found.high
    entropy = curve("learn/entropy", folders["seed-0"])
    assert entropy.mean[-1] == pytest.approx(fmean(row["learn/entropy"] for row in rows[-2:]))


@pytest.mark.slow
def test_seeds_are_one_arm_between_its_lowest_and_highest(folders: dict[str, Path]) -> None:
    both = [folders["seed-0"], folders["seed-1"]]
    found, alone = curve(neural.RETURN, *both), [curve(neural.RETURN, one) for one in both]
    ends = [one.mean[-1] for one in alone]
    assert (found.low[-1], found.high[-1]) == (min(ends), max(ends))
    assert found.mean[-1] == pytest.approx(fmean(ends))
    tests = curve(neural.EVALUATION, *both)
    rows = [[row for row in progress(one) if neural.EVALUATION in row] for one in both]
    assert tests.x == tuple(int(row["steps"]) for row in rows[0])
    assert tests.mean == pytest.approx(
        [fmean(row[neural.EVALUATION] for row in at) for at in zip(*rows, strict=True)]
    )
    named = dict(summary(read_experiments(both)))
    (said, _) = named["bucket_brigade, all seeds"]
    assert f"{short(found.mean[-1])} ({short(min(ends))} to {short(max(ends))}) at step" in said


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 7))
def test_windows_weigh_batches_by_their_games(ended: list[int], smooth: int) -> None:
    rows, games = list[Row](), 0
    for place, count in enumerate(ended):
        games += count
        rows.append({"steps": place + 1, "at": 0.0, "train/total_episodes": games})
        rows[-1] |= {"episode/reward": float(place**2)} if count else {}
    wanted = {
        end + 1: by_hand(rows, "episode/reward", end, smooth)
        for end in range(smooth - 1, len(rows))
        if sum(ended[end + 1 - smooth : end + 1])
    }
    assert neural.line(rows, neural.RETURN, smooth) == pytest.approx(wanted)


@given(st.integers(0, 5000))
def test_long_curves_are_thinned_and_keep_their_end(length: int) -> None:
    found = neural.thinned(range(length))
    assert len(found) == min(length, len(found)) <= neural.MOST_POINTS
    assert found[-1:] == [*range(length)][-1:]
    assert len({after - before for before, after in pairwise(found)}) <= 1


def test_the_document_has_the_runs_own_figures(folders: dict[str, Path]) -> None:
    text = results(read_experiments([folders["seed-0"]]), [], "orchestry report run")
    tokens, rows = READER.parse(text), progress(folders["seed-0"])
    last = rows[-1]
    assert headings(tokens, "h2") == [*SECTIONS, *ENDS]
    assert all(len(cells) == 1 for cells in widths(tokens))
    assert "backend ppo (one policy for all, 64x64, team reward, own critic), seed 0" in text
    assert (
        f"{last['steps']:,} steps, {last['train/total_episodes']:,} games, 10 checkpoints written "
        f"({SMALL['keep']} kept)" in text
    )
    ended = [short(last[name]) for name in ("train/avg_reward_100ep", "evaluation/reward")]
    assert "| steps | 6,016 |" in text  # not "of 6,000", which would look like an error
    assert f"| 6,016 | {last['train/total_episodes']:,} | {' | '.join(ended)} |" in text
    quarter = [fmean(row["learn/entropy"] for row in part) for part in (rows[:11], rows[-11:])]
    assert f"| entropy, nats | {short(quarter[0])} | {short(quarter[1])} |" in text
    assert text.count("| checkpoints/0000") == SMALL["keep"]
    changed = "ppo.games=16, ppo.horizon=8, ppo.minibatch=128, ppo.evaluate_games=4"
    assert f"| other than the defaults | {changed} |" in text
    assert "episode" not in text.replace("episodes.jsonl", "")


def test_opponents_and_the_game_are_named(folders: dict[str, Path]) -> None:
    (one,) = read_experiments([folders["riders"]])
    said = " ".join(headline(one))
    assert "bucket_brigade (scenario rest_trap)" in said
    assert "Agents that don't learn: agent_3 is free_rider, agent_2 is guard or self." in said
    assert "orchestry evaluate" in said


@pytest.mark.slow
def test_a_run_in_which_no_game_ended_says_so(folders: dict[str, Path], tmp_path: Path) -> None:
    (one,) = read_experiments([folders["none"]])
    assert one.missing == ("no game has ended",)
    report = write_report([one], tmp_path, "orchestry report none")
    names = [path.name for path in report.files if path.suffix == ".png"]
    assert names == ["training-bucket_brigade.png"]
    assert "- Missing: no game has ended." in report.files[0].read_text()


def evaluation(scenario: str, checkpoint: str, learned: float, games: int = 1000) -> Evaluation:
    def team(mean: float) -> Team:
        own = Mean(mean=mean, low=mean - 10, high=mean + 10)
        return Team(returns=own, by_agent=(own,) * 4)

    return Evaluation(
        at=0.0,
        options={"scenario": scenario},
        changes={},
        games=games,
        seed=0,
        checkpoint=checkpoint,
        steps=6016 if checkpoint == "last" else 3000,
        teams={"learned": team(learned), "untrained": team(100)},
    )


def test_evaluations_are_a_table_by_scenario_and_checkpoint(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["seed-0"], folder)
    assert "Nothing was measured" in results(read_experiments([folder]), [], "orchestry report")
    for one in (
        evaluation("hard", "last", 500, games=20),
        evaluation("easy", "last", 900),
        evaluation("hard", "early", 300),
        evaluation("hard", "last", 510),
    ):
        keep(folder, one)
    with (folder / "evaluations" / FILE).open("ab") as file:
        file.write(b'{"at": 17')  # a kill, or another process that is writing
    found = read_experiments([folder])
    assert found[0].missing == ()
    text = results(found, [], "orchestry report run")
    section = text.partition("## Evaluation in new games\n\n")[2].partition("\n\n")[0]
    assert section.splitlines()[2:] == [
        "| run | scenario easy | 6,016 | learned | 900 (890 to 910) | 1,000 |",
        "| run | scenario easy | 6,016 | untrained | 100 (90 to 110) | 1,000 |",
        "| run | scenario hard | 3,000 | learned | 300 (290 to 310) | 1,000 |",
        "| run | scenario hard | 3,000 | untrained | 100 (90 to 110) | 1,000 |",
        "| run | scenario hard | 6,016 | learned | 510 (500 to 520) | 1,000 |",
        "| run | scenario hard | 6,016 | untrained | 100 (90 to 110) | 1,000 |",
    ]
    assert "Nothing was measured" not in text
    said = "Evaluated after step 6,016, scenario easy, 1,000 games: learned 900 (890 to 910)"
    assert said in " ".join(headline(found[0]))
    (first, *_, last) = lessons(found[0])
    assert "scenario easy, 1,000 games: the learned team's return 900 (890 to 910)" in first
    assert last.endswith("untrained 100 (90 to 110): higher.")
    (ahead,) = [one for one in criteria(found[0]) if "baselines" in one.name]
    assert (ahead.verdict, ahead.why.count("untrained")) == ("met", 2)  # of the last step alone
    keep(folder, evaluation("hard", "last", 105))
    (ahead,) = [one for one in criteria(read_experiments([folder])[0]) if "baselines" in one.name]
    assert (ahead.verdict, ahead.why.count("untrained")) == ("not met", 1)
    shown = Page(page.write_page(found, tmp_path / "page")).index["runs"][0]["steps"]["measured"]
    assert [(one["game"], one["steps"]) for one in shown] == [
        ("scenario easy, 1,000 games", 6016),
        ("scenario hard, 1,000 games", 3000),
        ("scenario hard, 1,000 games", 6016),
    ]
    assert shown[2]["teams"][0] == {"team": "learned", "mean": 510, "low": 500, "high": 520}


def test_an_interrupted_run_says_how_far_it_came(folders: dict[str, Path]) -> None:
    (one,) = read_experiments([folders["cut"]])
    steps = int(progress(folders["cut"])[-1]["steps"])
    assert one.missing == (f"{steps:,} of 50,000,000 steps are played, then it was interrupted",)
    assert "| how its processes ended | interrupted 1 |" in results([one], [], "orchestry report")


def test_a_killed_run_is_reported_as_far_as_it_came(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    shutil.copytree(folders["seed-0"], folder)
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:4]) + b'{"kind":"lea')
    (folder / "summary.json").unlink()
    rows = (folder / PROGRESS).read_bytes().splitlines(keepends=True)
    (folder / PROGRESS).write_bytes(b"".join(rows[:20]) + rows[20][:30])
    (one,) = read_experiments([folder])
    kept = json.loads(lines[3])["state"]["steps"]
    assert one.missing == (
        "2,560 of 6,000 steps are played",
        f"its last checkpoint is of step {kept:,}: a resume plays what follows again",
        "its process has not ended in order: it still runs, or was cut off",
        "it has no readable summary.json: progress.jsonl is read here",
    )
    assert (
        f"2,560 of 6,000 steps, {json.loads(rows[19])['train/total_episodes']:,} games"
        in (headline(one)[0])
    )


def test_a_damaged_row_is_left_out_and_named(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["seed-0"], tmp_path / "run")
    path = tmp_path / "run" / PROGRESS
    path.write_text(path.read_text().replace('{"steps": 256,', '{"steps" 256,'))
    (one,) = read_experiments([tmp_path / "run"])
    assert len(one.run.batches) == 46
    (said,) = one.missing
    assert said.startswith("damaged lines are left out: ")
    assert f"{PROGRESS} line 2 is damaged" in said


@pytest.mark.slow
def test_a_run_of_language_models_stands_beside(
    folders: dict[str, Path], searched: Run, tmp_path: Path
) -> None:
    found = read_experiments([folders["seed-0"], searched.folder])
    report = write_report(found, tmp_path, "orchestry report a b")
    tokens = READER.parse(report.files[0].read_text())
    assert set(headings(tokens, "h2")) > {*SECTIONS, *ENDS, "Example trajectories"}
    assert all(len(cells) == 1 for cells in widths(tokens))
    figures = {path.stem for path in report.files if path.suffix == ".png"}
    assert figures >= {"rewards-words", "returns-bucket_brigade", "training-bucket_brigade"}
    labels = [one.label for one in found]
    assert [label for label in labels if "ppo" in label and "steps" in label] == []


def test_figures_have_free_axes_a_panel_per_game_and_no_empty_panel(
    folders: dict[str, Path],
) -> None:
    names = ("seed-0", "seed-1", "riders", "none")
    found = arms(read_experiments([folders[name] for name in names]))
    with look():
        picture = draw_returns("bucket_brigade", found)
    assert picture is not None
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == [f"bucket_brigade, scenario {name}: return" for name in ("hard", "rest_trap")]
    returns = [
        row["episode/reward"] for row in progress(folders["riders"]) if "episode/reward" in row
    ]
    low, high = picture.figure.axes[1].get_ylim()
    assert low < min(returns) < max(returns) < high
    assert "from the lowest to the highest seed" in picture.caption
    assert re.search(
        r"games of the last 2 batches|games of a batch|last 1 to 2 batches", picture.caption
    )
    training = draw_training("bucket_brigade", found)
    assert training is not None
    assert all(axes.lines for axes in training.figure.axes if axes.get_visible())
    assert draw_returns("bucket_brigade", arms(read_experiments([folders["none"]]))) is None


def test_the_pages_data_are_the_rows(folders: dict[str, Path], tmp_path: Path) -> None:
    both = [folders["seed-0"], folders["seed-1"]]
    found = Page(page.write_page(read_experiments(both), tmp_path))
    rows, steps = progress(both[0]), found.index["runs"][0]["steps"]
    raw = [[row["steps"], row["episode/reward"]] for row in rows if "episode/reward" in row]
    assert steps["batches"] == [[at, pytest.approx(value, rel=1e-5)] for at, value in raw]
    assert steps["last"]["train/total_episodes"] == rows[-1]["train/total_episodes"]
    assert (steps["ended"], steps["asked"], steps["over"]) == ("done", 6000, "the last 2 batches")
    assert [one["kept"] for one in steps["checkpoints"]] == [False] * 8 + [True] * 2
    names = [one["name"] for one in steps["figures"]]
    assert names == list(neural.FIGURES.values())
    ((chart,), own) = found.index["arms"], curve(neural.RETURN, *both)
    (line,) = chart["arms"]
    assert line["points"] == [
        [at, pytest.approx(value, rel=1e-5)] for at, value in zip(own.x, own.mean, strict=True)
    ]
    assert [point[0] for point in line["band"]] == list(own.x)
    assert str(tmp_path.parent).encode() not in found.bytes


def test_a_run_in_python_says_what_it_came_to(folders: dict[str, Path]) -> None:
    run = orchestry.load_run(folders["seed-0"])
    last = progress(run.folder)[-1]
    assert f"6,016 steps, return {short(last['train/avg_reward_100ep'])}, done" in repr(run)
    assert "<th>steps</th><td>6,016</td>" in run._repr_html_()
    pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert list(frame["learn/kl"]) == [row["learn/kl"] for row in progress(run.folder)]


def test_reading_needs_no_row_of_another_backend(searched: Run) -> None:
    run = Salvaged(searched.folder)
    assert (run.neural, run.batches) == (False, [])


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_the_page_shows_curves_and_hides_the_episodes(
    folders: dict[str, Path], searched: Run, tmp_path: Path
) -> None:
    names = ("seed-1", "riders", "none", "cut")
    measured = tmp_path / "seed-0"
    shutil.copytree(folders["seed-0"], measured)
    keep(measured, evaluation("easy", "last", 900))
    shown = read_experiments([measured, *(folders[name] for name in names), searched.folder])
    path = page.write_page(shown, tmp_path / "page")
    with browser(tmp_path / "profile") as tab:
        tab.open(path.as_uri())
        said = "document.getElementById('run').innerText"
        last = progress(folders["seed-0"])[-1]
        assert f"{last['train/total_episodes']:,}" in tab.eval(said)
        assert tab.eval("document.querySelectorAll('#run .small').length") == len(neural.FIGURES)
        assert tab.eval("document.querySelectorAll('#compare .chart').length") == 2  # games
        assert tab.eval("document.querySelectorAll('#compare .band').length") == 1
        assert "scenario easy, 1,000 games" in tab.eval(said)
        assert tab.eval("getComputedStyle($('browser')).display") == "none"
        tab.eval("document.querySelector('#run .chart').focus()")
        tab.press("Home")
        first = next(row for row in progress(folders["seed-0"]) if "episode/reward" in row)
        text = tab.eval("document.activeElement.getAttribute('aria-valuetext')")
        assert text.startswith(f"step {int(first['steps']):,} ")
        tab.press("]", "]", "]", "j", "t", "d")
        assert "No game of this run has ended" in tab.eval(said)
        tab.press("]")
        assert "interrupted" in tab.eval(said)
        tab.press("]")
        assert tab.eval("getComputedStyle($('browser')).display") != "none"
        assert not [e for e in tab.events if e["method"] == "Runtime.exceptionThrown"]


@given(st.lists(st.none() | st.floats(-1e3, 1e3), min_size=1, max_size=12), st.integers(1, 4))
def test_a_curve_lies_within_its_band_and_ends_no_higher_than_its_best(
    returns: list[float | None], smooth: int
) -> None:
    rows: list[Row] = []
    for number, one in enumerate(returns, 1):
        row: Row = {"steps": 100 * number, neural.GAMES: 3 * number}
        rows.append(row if one is None else {**row, neural.RETURN: one})
    found, band = neural.line(rows, neural.RETURN, smooth), neural.spread(rows, smooth)
    assert found.keys() == band.keys() if smooth > 1 else found.keys() <= band.keys()
    for steps, mean in found.items():
        low, high = band[steps]
        assert low - 1e-6 <= mean <= high + 1e-6


def _scripted(scenario: str, learned: float, guard: float) -> Evaluation:
    found = evaluation(scenario, "last", learned)
    level = Mean(mean=guard, low=guard - 10, high=guard + 10)
    beside = {**found.teams, "guard": Team(returns=level, by_agent=(level,) * 4)}
    return found.model_copy(update={"teams": beside})


def test_ppo_is_judged_by_criteria_of_its_own(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["seed-0"], folder)

    def verdicts() -> dict[str, str]:
        (experiment,) = read_experiments([folder])
        return {one.name: one.verdict for one in criteria(experiment)}

    assert [*verdicts()] == [
        "500 games without a crash",
        "stable after 1 to 2 M steps",
        "level with the best scripted player",
        "level with it in 3 scenarios",
        "ahead of all baselines",
    ]
    stable, level, wide = [*verdicts()][1:4]
    assert {verdicts()[name] for name in (stable, level, wide)} == {"can't tell"}
    keep(folder, _scripted("hard", 500, 515))  # overlaps
    assert (verdicts()[level], verdicts()[wide]) == ("met", "can't tell")
    for scenario in ("easy", "rest_trap"):
        keep(folder, _scripted(scenario, 500, 400))
    assert verdicts()[wide] == "met"
    keep(folder, _scripted("easy", 500, 900))
    assert (verdicts()[level], verdicts()[wide]) == ("met", "not met")
    keep(folder, _scripted("hard", 500, 900))
    assert verdicts()[level] == "not met"


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(1_000_000, "met"), (2_000_000, "met"), (9_000_000, "not met"), (None, "can't tell")],
)
def test_a_return_is_stable_where_it_moves_no_more(
    folders: dict[str, Path], tmp_path: Path, after: int | None, verdict: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["seed-0"], folder)
    asked = 3_000_000 if after else 900_000
    rows = [
        {
            "steps": steps,
            "at": steps / 1e5,
            "episode/reward": min(steps, after or steps) / 1e4 + (place % 2) / 10,
            "train/total_episodes": 10 * (place + 1),
        }
        for place, steps in enumerate(range(50_000, asked + 1, 50_000))
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (experiment,) = read_experiments([folder])
    (found,) = [one for one in criteria(experiment) if one.name.startswith("stable")]
    assert found.verdict == verdict, found
