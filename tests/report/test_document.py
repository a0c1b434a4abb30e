"""RESULTS.md holds what the runs came to, and whole trajectories."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import orchestry
from orchestry.core.errors import StoreError
from orchestry.report.document import results, write_report
from orchestry.report.examples import examples
from orchestry.report.runs import Salvaged, read_experiments
from orchestry.store.run import Run
from tests.report.made import config, copied
from tests.report.test_text import HOSTILE, leaves

pytest.importorskip("matplotlib")
READER = MarkdownIt("commonmark").enable("table")
SECTIONS = [
    "Summary",
    "What worked and what did not",
    "Configuration",
    "Learning curves",
    "Evaluation on held-out problems",
    "Baselines",
    "How the teams worked",
    "Example trajectories",
    "Cost",
    "What failed",
    "How to make this again",
]


def headings(tokens: list[Token], tag: str) -> list[str]:
    pairs = pairwise(tokens)
    return [after.content for one, after in pairs if (one.type, one.tag) == ("heading_open", tag)]


def widths(tokens: list[Token]) -> list[set[int]]:
    """Of each table, how many cells its rows have."""
    found: list[list[int]] = []
    for token in tokens:
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append(0)
        elif token.type in ("td_open", "th_open"):
            found[-1][-1] += 1
    return [set(rows) for rows in found]


def written(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_equal_runs_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    first = write_report(read_experiments([folder]), tmp_path / "a", "orchestry report run")
    write_report(read_experiments([folder]), tmp_path / "b", "orchestry report run")
    found = written(tmp_path / "a")
    assert found == written(tmp_path / "b")
    assert {str(path.relative_to(tmp_path / "a")) for path in first.files} == set(found)
    assert {
        "RESULTS.md",
        "index.html",
        "figures/rewards-words.png",
        "figures/rewards-words.svg",
    } <= set(found)


def test_the_document_has_its_sections_and_the_runs_own_figures(folder: Path) -> None:
    text = results(read_experiments([folder]), [], "orchestry report run")
    run = orchestry.load_run(folder)
    assert headings(READER.parse(text), "h2") == SECTIONS
    assert run.best is not None
    assert f"the best, reward {run.best.reward:.3f}" in text
    assert f"Best of k on its own problems: first {run.best_of_k[0]:.3f}" in text
    assert f"| calls answered by a model | {run.summary.calls:,} |" in text
    for credit in run.best.credits[:3]:
        assert f"| {credit.agent} | {credit.credit:+.3f} | [{credit.low:+.3f}" in text


@pytest.mark.parametrize("said", [*HOSTILE, "word " * 2000, "```\n" * 3, "~~~\n</details>\n# x"])
def test_what_a_model_wrote_cannot_break_the_document(said: str, tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": said}) + "\n")
    fake = {"name": "fake", "fake": {"script": str(script)}}
    orchestry.train(config(provider=fake, episodes=1), tmp_path / "run")
    tokens = READER.parse(results(read_experiments([tmp_path / "run"]), [], "orchestry report x"))
    assert headings(tokens, "h2") == SECTIONS
    kinds = {token.type for token in leaves(tokens)}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    assert all(len(rows) == 1 for rows in widths(tokens))
    assert max(len(token.content) for token in tokens) < 2000
    shown = "".join(token.content for token in tokens)
    assert not {"\x1b", "\x00", "\u202e", "\u200b", "\x07"} & set(shown)


def test_several_runs_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    other = copied(folder, tmp_path / "other")
    changed = (other / "config.yaml").read_text().replace("seed: 0", "seed: 1")
    (other / "config.yaml").write_text(changed)
    text = results(read_experiments([folder, other]), [], "orchestry report a b")
    tokens = READER.parse(text)
    assert "|  | run (seed 0) | other (seed 1) |" in text
    assert "words, all seeds" in text
    assert all(len(rows) == 1 for rows in widths(tokens))


def test_a_run_without_an_episode_is_reported(folder: Path, tmp_path: Path) -> None:
    (folder / "episodes.jsonl").write_bytes(b"")
    report = write_report(read_experiments([folder]), tmp_path / "out", "orchestry report run")
    text = report.files[0].read_text()
    assert headings(READER.parse(text), "h2") == SECTIONS
    assert "Missing: episodes.jsonl lacks what the journal calls finished" in text
    assert "There is no curve yet" in text
    assert [path.name for path in report.files] == ["RESULTS.md", "summary.txt", "index.html"]


def test_without_matplotlib_all_but_the_figures_is_written(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; "
        f"from orchestry.cli import main; main(['report', {str(folder)!r}, '--out', 'out'])"
    )
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=tmp_path)
    said = 'igures are left out without matplotlib: `pip install "orchestry-marl[plots]"`'
    assert done.stderr.count("\n") == 2  # after what it does
    assert said in done.stderr
    assert said in (tmp_path / "out" / "RESULTS.md").read_text()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"RESULTS.md", "summary.txt", "index.html"}


def test_reading_runs_loads_no_matplotlib_and_no_torch(folder: Path) -> None:
    code = (
        "import sys, pathlib; from orchestry.report.runs import read_experiments as r; "
        "from orchestry.report import document, headline; "
        f"headline.summary(r([pathlib.Path({str(folder)!r})])); "
        "print([m for m in ('matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("taken", ["figures", "RESULTS.md", "summary.txt", "index.html"])
def test_a_disk_that_refuses_is_named(taken: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if taken == "figures":
        (out / taken).write_text("a file where a folder goes")
    else:
        (out / taken).mkdir()  # a folder where a file goes
    with pytest.raises(StoreError, match=rf"{taken}.* can't be written .* choose another --out"):
        write_report(read_experiments([folder]), out, "orchestry report")


def test_best_median_and_worst_are_what_they_say(searched: Run) -> None:
    rewards = sorted(leaf.score.total for record in searched.episodes for leaf in record.leaves())
    best, median, worst = examples(searched)
    assert [one.place for one in (best, median, worst)] == ["the best", "the median", "the worst"]
    assert (best.reward, worst.reward) == (rewards[-1], rewards[0])
    assert median.reward == rewards[(len(rewards) - 1) // 2]
    assert [turn.agent for turn in best.turns] == ["writer", "reviewer", "refactorer"]


def test_of_equal_trajectories_one_with_credits_is_shown(searched: Run) -> None:
    best, _, worst = examples(searched)
    for one in (best, worst):
        assert {credit.agent for credit in one.credits} == {"writer", "reviewer", "refactorer"}
        assert {credit.leaf for credit in one.credits} == {one.leaf.id}


def test_few_trajectories_are_shown_once(folder: Path) -> None:
    (folder / "episodes.jsonl").write_bytes(b"")
    assert examples(Salvaged(folder)) == ()
