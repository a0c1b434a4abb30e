"""Every place that shows a run's reward shows one number under one word: reward is the mean over
all trajectories, best of k the mean over each episode's best.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import orchestry
from orchestry.report.page import write_page
from orchestry.report.runs import read_experiments
from tests.cli.support import FAKE, CommandLine

Means = tuple[float, float]
"""Reward and best of k."""
WORDED = re.compile(r"\breward +(?:of +)?(\d\.\d+).*?\bbest of k +(\d\.\d+)", re.DOTALL)


def told(text: str) -> list[Means]:
    """What a text says under the two words."""
    return [(float(one), float(best)) for one, best in WORDED.findall(text)]


def in_plain(plain: dict[str, Any]) -> Means:
    assert plain["mean_reward"] == plain["mean_trajectory_reward"]
    return plain["mean_reward"], plain["best_of_k"]


def in_files(folder: Path) -> dict[str, Means]:
    """What the run's files and its Python object say."""
    with (folder / "rewards.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    run = orchestry.load_run(folder)
    shown = dict(re.findall(r"<th>(.*?)</th><td>(.*?)</td>", run._repr_html_()))
    frame = run.to_pandas()
    return {
        "summary.json": in_plain(json.loads((folder / "summary.json").read_text())),
        "rewards.csv": (mean(rows, "total"), mean(rows, "best_of_k")),
        "metrics.jsonl": (mean(metrics, "reward"), mean(metrics, "best_of_k")),
        "its last line": (metrics[-1]["mean_reward"], metrics[-1]["mean_best_of_k"]),
        "Run": (fmean(run.rewards), fmean(run.best_of_k)),
        "data frame": (frame["reward"].mean(), frame["best_of_k"].mean()),
        "notebook": (float(shown["reward"]), float(shown["best of k"])),
        "measures": (run.measured().reward.mean, run.measured().best.mean),  # type: ignore[union-attr]
    }


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return fmean(float(row[key]) for row in rows)


def in_table(document: str, row: str) -> Means:
    """What a row of RESULTS.md's table of measurements says."""
    heads = next(line for line in document.splitlines() if "| best of k, 95 % |" in line)
    places = [
        [*map(str.strip, heads.split("|"))].index(f"{w}, 95 %") for w in ("reward", "best of k")
    ]
    line = next(line for line in document.splitlines() if line.startswith(f"| {row}"))
    one, best = (float(line.split("|")[place].split()[0]) for place in places)
    return one, best


@pytest.mark.parametrize("how", [(), ("--samples", "3")], ids=["search", "samples"])
def test_each_place_has_the_same_two_numbers(cli: CommandLine, how: tuple[str, ...]) -> None:
    pytest.importorskip("pandas")
    played = cli("run", *FAKE, "--run-dir", "r", "--verbose")
    evaluated = cli("evaluate", "r", *how, "--episodes", "3", "--verbose")
    (measured,) = Path("r/evaluations").iterdir()
    cli("evaluate", "r", *how, "--episodes", "3", "--json")
    document = (cli("report", "r"), Path("r/report/RESULTS.md").read_text())[1]
    page = json.loads(
        re.findall(
            r'id="index"[^>]*>(.*?)</script>',
            write_page(read_experiments([Path("r")]), Path("page")).read_text(),
            re.DOTALL,
        )[0]
    )
    for folder, said, kind in ((Path("r"), played, "run"), (measured, evaluated, "evaluation")):
        listed = json.loads(cli("runs", folder, "--json").out)["runs"][0]
        (drawn,) = [one for one in page["runs"] if one["kind"] == kind]
        lines = told("\n".join(x for x in said.err.splitlines() if "episode " in x))
        (panel, *_) = told(said.out)
        found = in_files(folder) | {
            "runs": (listed["reward"], listed["best_of_k"]),
            "panel": panel,
            "lines of --verbose": (fmean(one for one, _ in lines), fmean(b for _, b in lines)),
            "page": in_plain(drawn["summary"]),
            "page's rows": (mean(drawn["rows"], "reward"), mean(drawn["rows"], "best")),
            **({"RESULTS.md": in_table(document, "the team")} if kind == "evaluation" else {}),
        }
        right = found["summary.json"]
        assert right[0] < right[1], "else the test shows nothing"
        assert found == {place: pytest.approx(right, abs=0.002) for place in found}


def test_two_runs_are_compared_under_the_same_words(cli: CommandLine) -> None:
    for name, k in (("one", "4"), ("other", "2")):
        assert cli("run", *FAKE, "--k-samples", k, "--run-dir", name).code == 0
    figures = {
        one["name"]: one
        for one in json.loads(cli("compare", "one", "other", "--json").out)["figures"]
    }
    for side, name in (("first", "one"), ("second", "other")):
        found = orchestry.load_run(name).summary
        assert figures["reward"][side] == pytest.approx(found.mean_reward)
        assert figures["best of k"][side] == pytest.approx(found.best_of_k)
