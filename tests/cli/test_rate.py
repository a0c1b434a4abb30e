"""`orchestry rate`, typed at a real terminal and called by programs."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestry import load_run
from orchestry.judge.calibration import extremes
from orchestry.store.journal import Rated, ratings
from orchestry.store.run import Store
from tests.cli.support import FAKE, CommandLine
from tests.journals import keep_events

JUDGED = ("--set", "judge.enabled=true", "--set", "behaviors.enabled=false")
CREDITED = ("--set", "credit.share=0.3")
ASKS = "rating, 0 to 10 (Enter skips, q stops): "
COMMENT = "comment (Enter for none): "
RUN = Path("run")


class Terminal:
    """`orchestry rate` at a terminal of its own, 100 columns wide."""

    def __init__(self, *args: object) -> None:
        self._main, theirs = pty.openpty()
        command = [sys.executable, "-m", "orchestry", "rate", *map(str, args)]
        environ = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ
        )
        os.close(theirs)
        self.raw = b""

    def until(self, text: str) -> str:
        """What appears up to and with the text, without colours; the rest is kept."""
        while text not in self._plain():
            assert self._read(), f"ended without {text!r}: {self._plain()}"
        before, found, _ = self._plain().partition(text)
        self.raw = self.raw[self.raw.rindex(text.encode()) + len(text.encode()) :]
        return before + found

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C while it waits for a line. Python sees a signal that comes between the question
        and the wait at the next key alone, so the process has to be asleep first."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "S":
            time.sleep(0.01)
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Exit code, and what appeared last."""
        while self._read():
            pass
        return self.process.wait(10), self._plain()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)

    def _plain(self) -> str:
        return re.sub(r"\x1b\[[\d;]*m", "", self.raw.decode(errors="replace")).replace("\r\n", "\n")

    def _read(self) -> bool:
        """More output; False where the process has closed the terminal."""
        ready, _, _ = select.select([self._main], [], [], 20)
        assert ready, f"nothing for 20 s after: {self._plain()}"
        try:
            new = os.read(self._main, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.raw += new
        return bool(new)


@contextmanager
def terminal(*args: object) -> Iterator[Terminal]:
    opened = Terminal(*args)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def run(cli: CommandLine) -> Path:
    """A judged run of three episodes with credits, in ./run."""
    done = cli("run", *FAKE, *JUDGED, *CREDITED, "--run-dir", RUN)
    assert done.code == 0, done
    return RUN


def said(folder: Path) -> list[Rated]:
    return [event for event in load_run(folder).events if isinstance(event, Rated)]


def test_a_person_is_asked_before_any_number_is_shown(run: Path) -> None:
    chosen = extremes(load_run(run).episodes, 1, 1)
    with terminal(run, "--best", 1, "--worst", 1) as screen:
        shown = screen.until(ASKS)
        assert f"episode {chosen[0].record.episode}, {chosen[0].record.problem}" in shown
        assert all(turn in shown for turn in ("writer  0.", "reviewer  0.", "refactorer  0."))
        assert not any(word in shown for word in ("reward", "judge", "credit", "best", "quality"))
        screen.type("11\n")
        assert "'11' is no rating: give a number from 0" in screen.until(ASKS)
        screen.type("7.5\n")
        screen.until(COMMENT)
        screen.type("tidy\n")
        numbers = screen.until(ASKS)
        assert f"one of the {chosen[0].why} by reward" in numbers
        assert "you     0.750" in numbers
        assert f"reward  {chosen[0].reward:.3f}  (quality " in numbers
        assert "'s move 0." in numbers.partition("judge   0.")[2]
        assert numbers.count("credit ") == 3
        screen.type("2\n")
        screen.until(COMMENT)
        screen.type("\n")
        code, last = screen.end()
    assert code == 0
    assert "you and" in last
    assert "% of 1" in last
    assert "the judge's numbers count: 0 as " in last
    kept = ratings(load_run(run).events)
    assert kept == {chosen[0].key: 0.75, chosen[1].key: 0.2}
    assert [event.comment for event in said(run)] == ["", "tidy", ""]  # kept at once, then whole


def test_an_interrupt_keeps_what_was_typed_and_what_is_skipped_stays(run: Path) -> None:
    with terminal(run) as screen:
        screen.until(ASKS)
        screen.type("\n")
        screen.until(ASKS)
        screen.type("4\n")
        screen.until(COMMENT)
        screen.interrupt()
        code, last = screen.end()
    assert code == 130
    assert "interrupted; 1 rating is kept: `orchestry rate run` continues" in last
    assert "Traceback" not in last
    (event,) = said(run)
    with terminal(run, "--episode", event.episode, "--node", event.node) as screen:
        screen.until("(Enter keeps your 4, q stops): ")
        screen.type("\n")
        assert screen.end()[0] == 0
    assert said(run) == [event]


@pytest.mark.parametrize("keys", ["q\n", "\x04"])
def test_q_and_the_end_of_input_stop(run: Path, keys: str) -> None:
    with terminal(run) as screen:
        screen.until(ASKS)
        screen.type(keys)
        code, last = screen.end()
    assert code == 0
    assert "Nothing is rated yet" in last
    assert said(run) == []


def test_what_a_model_wrote_does_not_steer_the_terminal(cli: CommandLine, tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    evil = "a\x1b[2Jb\x07\x1b]0;title\x07"
    lines = [{"agent": who, "text": evil} for who in ("writer", "reviewer", "refactorer")]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = cli("run", *FAKE, "--set", f"provider.fake.script={script}", "--run-dir", RUN)
    assert done.code == 0, done
    with terminal(RUN, "--episode", 0) as screen:
        shown = screen.until(ASKS)
        screen.type("\n")
        shown += screen.end()[1]
    assert shown.count("a [2Jb") == 3
    assert not any(code in shown for code in ("\x1b", "\x07"))


def test_a_program_records_one_rating(cli: CommandLine, run: Path) -> None:
    best = load_run(run).episodes[1].best
    first = cli("rate", run, "--episode", 1, "--rating", 3, "--comment", "dull", "--json")
    assert (first.code, first.err) == (0, "")
    found = json.loads(first.out)
    assert found["run_dir"] == str(run)
    assert found["recorded"] == [
        {"episode": 1, "node": best, "rating": 0.3, "comment": "dull", "override": False}
    ]
    assert found["agreement"]["reward"]["count"] == found["agreement"]["judge"]["count"] == 1
    assert found["calibration"]["pairs"] == 1
    changed = cli("rate", run, "--episode", 1, "--node", best, "--rating", "8.5")
    assert "the judge" in changed.out
    assert ratings(load_run(run).events) == {(1, best): 0.85}


def test_a_rating_overrides_the_reward_where_that_is_asked(cli: CommandLine, run: Path) -> None:
    assert cli("rate", run, "--episode", 0, "--rating", 9, "--override").code == 0
    assert cli("rate", run, "--episode", 1, "--rating", 9).code == 0
    assert [event.override for event in said(run)] == [True, False]
    shown = cli("rate", run, "--show").out
    assert [line.count("for the reward") for line in shown.splitlines()[1:3]] == [1, 0]


def test_show_asks_nothing_and_works_while_the_run_is_written(cli: CommandLine, run: Path) -> None:
    for episode, number in ((0, 2), (1, 9), (2, 5)):
        assert cli("rate", run, "--episode", episode, "--rating", number).code == 0
    with Store(run):
        shown = cli("rate", run, "--show")
        table = json.loads(cli("rate", run, "--show", "--json").out)
        cli("rate", run, "--episode", 0, "--rating", 1).failed(1, "being written by another proc")
    assert shown.code == 0
    assert [line.split()[0] for line in shown.out.splitlines()[1:4]] == ["0", "1", "2"]
    assert table["recorded"] == []
    assert table["agreement"]["reward"]["pairs"] == 3
    assert len(said(run)) == 3


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ((), ("no terminal to ask in", "--episode N --rating X", "--show")),
        (("--episode", 0), ("no terminal to ask in",)),
        (("--rating", 4), ("Give --episode N",)),
        (("--node", "0.1"), ("Give --episode N",)),
        (("--episode", 0, "--comment", "x"), ("give --rating X too",)),
        (("--episode", 0, "--rating", 10.5), ("'10.5' is no rating", "from 0")),
        (("--episode", 0, "--rating", "nan"), ("'nan' is no rating",)),
        (("--episode", 9, "--rating", 5), ("no finished episode 9: choose one of 0, 1, 2",)),
        (("--episode", 0, "--node", "0", "--rating", 5), ("node '0': choose one of its leaves",)),
        (("--best", 0, "--worst", 0), ("leave nothing to rate",)),
        (("--best", -1), ("--best -1 --worst 3 leave nothing to rate",)),
        (("--show", "--rating", 3), ("leave the other options out",)),
        (("--show", "--override"), ("leave the other options out",)),
        (
            ("--episode", 0, "--node", "0.0", "--rating", 5, "--override"),
            ("node 0.0 is on the way to one: give --node with a leaf",),
        ),
    ],
)
@pytest.mark.slow
def test_bad_usage_is_one_line_and_records_nothing(
    cli: CommandLine, run: Path, args: tuple[object, ...], found: tuple[str, ...]
) -> None:
    cli("rate", run, *args).failed(2, *found)
    assert said(run) == []


def test_without_a_terminal_it_ends_at_once(run: Path) -> None:
    command = [sys.executable, "-m", "orchestry", "rate", str(run)]
    done = subprocess.run(command, input="7\n", capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("orchestry: there is no terminal to ask in: give --episode N")


def test_no_run_and_no_episode_are_named(cli: CommandLine, run: Path) -> None:
    cli("rate", "none").failed(2, "does not exist: give the directory that `orchestry run` printed")
    keep_events(run, lambda event: event.kind != "committed")
    (run / "episodes.jsonl").unlink()
    cli("rate", run, "--episode", 0, "--rating", 5).failed(2, "no finished episode to rate")


def test_without_a_judge_there_is_only_the_reward_to_compare(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--set", "judge.enabled=false", "--run-dir", RUN).code == 0
    shown = cli("rate", RUN, "--episode", 0, "--rating", 5)
    assert "the judge rated neither these" in shown.out
    assert json.loads(cli("rate", RUN, "--show", "--json").out)["agreement"]["judge"]["count"] == 0


def test_a_rated_run_goes_on_and_keeps_its_ratings(cli: CommandLine, run: Path) -> None:
    assert cli("rate", run, "--episode", 0, "--rating", 5).code == 0
    before = said(run)
    assert json.loads(cli("resume", run, "--episodes", 4, "--json").out)["episodes"] == 4
    assert said(run) == before
    assert cli("rate", run, "--episode", 3, "--rating", 5).code == 0


def test_help_says_what_is_hidden_until_one_has_rated(cli: CommandLine) -> None:
    text = " ".join(cli("rate", "--help").out.split())
    assert "are shown only after your rating" in text
    assert "outranks the judge" in text
