"""`orchestry ask`, as a user calls it; tests/engine/test_ask.py tests what it plays."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.support import FAKE, CommandLine


@pytest.fixture
def run(cli: CommandLine) -> Path:
    assert cli("run", *FAKE, "--run-dir", "r").code == 0
    return Path("r")


def test_the_answer_alone_goes_to_stdout(cli: CommandLine, run: Path) -> None:
    found = cli("ask", run, "words on tea")
    assert found.code == 0
    whole = json.loads(cli("ask", run, "words on tea", "--json").out)
    assert found.out == whole["answer"] + "\n"
    assert [turn["agent"] for turn in whole["turns"]] == ["writer", "reviewer", "refactorer"]
    assert whole["answer"] == whole["turns"][-1]["text"]
    assert 0 <= whole["reward"] <= 1
    assert (whole["calls"], whole["cost_usd"], whole["update"]) == (3, 0.0, 0)
    assert f"reward {whole['reward']:.3f}, 3 calls, $0.0000, {whole['folder']}" in found.err
    assert whole["turns"][0]["text"] not in found.err
    told = cli("ask", run, "words on tea", "--verbose")
    assert told.out == found.out
    for turn in whole["turns"][:2]:
        assert f"{turn['agent']}\n{turn['text']}\n" in told.err


def test_an_input_comes_from_a_file_or_from_stdin(
    cli: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in.txt").write_text("words on ink\n")
    Path("in.json").write_text(json.dumps({"prompt": "words on ink"}))
    monkeypatch.setattr(sys, "stdin", io.StringIO("words on ink\n"))
    piped = cli("ask", run, "-")
    Path("marked.json").write_text(json.dumps({"prompt": "words on ink"}), encoding="utf-8-sig")
    files = (("--file", name) for name in ("in.txt", "in.json", "marked.json"))
    for args in (*files, ("words on ink",)):
        assert cli("ask", run, *args).out == piped.out != ""
    assert len(list((run / "asks").iterdir())) == 1


def test_what_is_no_input_is_named(cli: CommandLine, run: Path) -> None:
    cli("ask", run).failed(2, "give one input: a text, `-` for stdin, or --file FILE")
    cli("ask", run, "a", "--file", "b").failed(2, "give one input")
    cli("ask", run, "--file", "nowhere").failed(
        2, "nowhere can't be read (No such file", "that exists"
    )
    cli("ask", "nowhere", "a").failed(2, "nowhere does not exist: give the directory")
    for text, why in (
        ('{"promt": "x"}', "it lacks prompt"),
        ('{"prompt": "x", ', "can't be read"),
        ('[{"prompt": "x"}]', "it is a list"),
    ):
        cli("ask", run, text).failed(2, "begins as a JSON object", why, 'give {"prompt": TEXT}')
    assert not (run / "asks").exists()


def test_a_part_of_the_answer_is_not_shown_twice(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--task", "tldr", "--run-dir", "t").code == 0
    found = cli("ask", "t", "words on tea", "--verbose")
    concise = json.loads(cli("ask", "t", "words on tea", "--json").out)["turns"][0]["text"]
    assert concise in found.out
    assert concise not in found.err


@pytest.mark.slow
def test_a_report_and_an_evaluation_do_not_see_asks(cli: CommandLine, run: Path) -> None:
    def tables() -> str:
        assert cli("report", run).code == 0
        return (run / "report" / "RESULTS.md").read_text()

    before = tables()
    assert cli("ask", run, "words on tea").code == 0
    assert tables() == before
    assert cli("evaluate", run, "--json").code == 0
    assert cli("resume", run / next(iter((run / "asks").iterdir())).relative_to(run)).code == 0
