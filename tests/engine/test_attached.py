"""A program that is a command: attached, checked, run, and killed with all that it started."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestry
from orchestry.cli import main
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS
from orchestry.task.programs.command import _reward_line as reward_line
from orchestry.task.registry import load_task
from tests.engine.test_programs import tags, turns

pytest.importorskip("aiohttp")

PROGRAM = """
import json, os, sys, urllib.request
problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])

def ask(url, text, **body):
    told = {"messages": [{"role": "user", "content": text}], **body}
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    asked = urllib.request.Request(url + "/chat/completions", json.dumps(told).encode(), head)
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

draft = ask(os.environ["OPENAI_BASE_URL"], problem["prompt"], model="writer")
final = ask(os.environ["ORCHESTRY_URL_CRITIC"], draft)
reward = {"reward": final.count("e") / max(1, len(final)), "tags": ["said"]}
END
"""


def attach(folder: Path, name: str, agents: str, program: Path, lines: Sequence[str]) -> Path:
    """The folder with the task that the command writes of a Python program and problems."""
    (folder / "problems.jsonl").write_text("\n".join(lines), encoding="utf-8")
    given = ["--problems", str(folder / "problems.jsonl"), "--agents", agents]
    command = [sys.executable, str(program)]
    with pytest.raises(SystemExit) as exited:
        main(["attach", name, "--dir", str(folder / "tasks"), *given, "--", *command])
    assert exited.value.code == 0
    return folder / "tasks"


def attached(folder: Path, end: str, **more: str) -> RunConfig:
    """A run of a command whose last lines are `end`."""
    (folder / "app.py").write_text(PROGRAM.replace("END", end), encoding="utf-8")
    lines = [f'{{"id": "p{n}", "prompt": "Write of {n}."}}' for n in range(2)]
    tasks = attach(folder, "app", "writer,critic", folder / "app.py", lines)
    file = tasks / "app" / "task.py"
    for name, value in more.items():
        file.write_text(re.sub(rf"{name} = \S+", f"{name} = {value}", file.read_text()))
    sets = ["task=app", f"task_path=[{tasks}]", "provider.name=fake", "episodes=2"]
    return resolve([], [*sets, "search.k_samples=2"], {})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 11])
def test_problems_without_splits_are_divided(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = '{{"id": "p{0}", "prompt": "Say {0}.", "data": {{"n": {0}, "inf": 1e400}}}}'
    lines = [told.format(n) for n in range(count)]
    (tmp_path / "given.jsonl").write_text("\n".join(lines), encoding="utf-8")
    given = ["--problems", str(tmp_path / "given.jsonl"), "--dir", str(tmp_path / "tasks")]
    with pytest.raises(SystemExit):
        main(["attach", "app", *given, "--", "true"])
    said = capsys.readouterr().out
    assert ("has a split, so of its" in said) == (count > 2)
    assert ("too few to divide" in said) == (count < 3)
    task = load_task("app", task_path=[tmp_path / "tasks"])
    found = {split: list(task.problems(split)) for split in SPLITS}
    assert sorted(one.data["n"] for every in found.values() for one in every) == [*range(count)]
    assert {one.data["inf"] for every in found.values() for one in every} == {math.inf}
    assert all(found.values()) == (count > 2)
    assert len(found["dev"]) == len(found["test"]) == (0 if count < 3 else max(1, count // 5))


@pytest.mark.parametrize(
    ("end", "ok", "said"),
    [
        ("print(json.dumps(reward))", True, "writer 1, critic 1; then it comes to its end"),
        ("raise SystemExit(3)", True, "ended with 3 on problem p0"),
        ("print(json.dumps({'reward': 7}))", False, "gave no reward on problem p0, only"),
        ("print('bye')", False, "gave no reward on problem p0, only 'bye'"),
        ("print(json.dumps({'reward': 0.6}))", True, "earns 0.60: a team may learn"),
        ("", False, "play ended without asking an agent on problem p0"),
    ],
)
def test_a_check_starts_the_program(
    end: str, ok: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attached(tmp_path, end)
    if not end:
        (tmp_path / "app.py").write_text("print('{\"reward\": 1.0}')", encoding="utf-8")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["tasks", "check", "app", "--task-path", str(tmp_path / "tasks"), "--json"])
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["rule"], last["ok"]) == ("program", ok)
    assert said in last["detail"]


@pytest.mark.parametrize(
    "end",
    [
        "print('a line'); print(json.dumps(reward))",
        "print(json.dumps(reward)); print('tracer: flushed 3 spans')",
        "print('{\"reward\": 1}'); print(json.dumps(reward)); print('{\"spans\": 3}'); print(1)",
        "json.dump(reward, open(os.environ['ORCHESTRY_REWARD'], 'w')); print('bye')",
        "print(json.dumps(reward), flush=True); print('a warning', file=sys.stderr)",
        "assert json.load(open(os.environ['ORCHESTRY_PROBLEM_FILE'])) == problem; "
        "print(json.dumps({**reward, 'feedback': '\\ud800'}))",
        "sys.stdout.reconfigure(encoding='utf-8'); "
        "print(json.dumps({**reward, 'feedback': '\\u2028'}, ensure_ascii=False))",
        "open(os.environ['ORCHESTRY_REWARD'], 'w', encoding='utf-8-sig').write(json.dumps(reward))",
    ],
)
def test_a_command_is_a_rollout(end: str, tmp_path: Path) -> None:
    run = orchestry.train(attached(tmp_path, end), tmp_path / "run")
    assert Counter(turn.agent for turn in turns(run)) == {"writer": 4, "critic": 4}
    assert tags(run) == {"said": 4}
    assert all(0 < one.reward < 1 for one in run.episodes)


def test_a_reward_has_its_own_highest(tmp_path: Path) -> None:
    def played(reward: float, most: str) -> orchestry.Run:
        place = tmp_path / f"{reward}-{most}"
        place.mkdir()
        end = f"print(json.dumps({{'reward': {reward}}}))"
        how = attached(place, end, max_turns=f"9; reward_max = {most}")
        return orchestry.train(how, place / "run")

    assert {one.reward for one in played(7.5, "10").episodes} == {0.75}
    with pytest.raises(TaskError, match="with numbers from 0 to 10 "):
        played(10.5, "10")
    with pytest.raises(TaskError, match="reward_max is 0: set it above 0"):
        played(1, "0")


@given(
    st.text(st.sampled_from('a "\\\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\ufeff\ud800\r\n{}')),
    st.booleans(),
)
def test_any_feedback_stands_in_one_line(text: str, by_hand: bool) -> None:
    """Of a program that builds the line by hand, also with control characters as they are."""
    line = json.dumps({"reward": 0.5, "feedback": text}, ensure_ascii=False)
    if by_hand:
        line = re.sub(r"\\u00(0b|1[c-e])", lambda found: chr(int(found[1], 16)), line)
    told = reward_line(f'{{"reward": 0.1}}\n{line}\na tracer\'s words \u2028\n', ["reward"])
    assert told == line


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("print(reward['reward'] > 2)", "the program gave no reward on problem .* only 'False'"),
        ("sys.exit('out of tea')", r"ended with 1 on problem p\d: out of tea"),
        ("print(json.dumps({'speed': 1}))", '"speed": 1.*print {"reward": 0.5} as a line'),
        ("print(json.dumps(reward)); print(json.dumps({'reward': 1.5}))", 'only \'{"reward": 1.5}'),
        ("print(json.dumps({'reward': float('nan')}))", "gave no reward"),
        ("print(json.dumps({**reward, 'other': 0.5}))", "gave no reward"),
        ("print(json.dumps({**reward, 'tags': 'abc'}))", "gave no reward"),
    ],
)
def test_a_command_without_a_reward_fails(end: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=text):
        orchestry.train(attached(tmp_path, end), tmp_path / "run")


def test_what_a_command_leaves_behind_is_killed(tmp_path: Path) -> None:
    """A child that holds its output open does not hold up the rollout."""
    note = tmp_path / "pids"
    end = (
        "import subprocess; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(note)!r}, 'a').write(f'{{child.pid}}\\n'); print(json.dumps(reward))"
    )
    run = orchestry.train(attached(tmp_path, end), tmp_path / "run")
    assert tags(run) == {"said": 4}
    gone(note)


def gone(note: Path) -> None:
    """The processes whose ids stand there end."""
    pids = [int(pid) for pid in note.read_text().split()]
    assert pids
    deadline = time.monotonic() + 10
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, pids))


def test_a_long_problem_stands_in_a_file(tmp_path: Path) -> None:
    read = 'problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])'
    end = "print(json.dumps(reward))"
    told = attached(tmp_path, end)
    bank = tmp_path / "tasks" / "app" / "problems.jsonl"
    bank.write_text(json.dumps({"id": "long", "prompt": "a " * 100_000}))
    app = tmp_path / "app.py"
    file = "problem = json.load(open(os.environ['ORCHESTRY_PROBLEM_FILE']))"
    app.write_text(app.read_text().replace(read, file))
    assert tags(orchestry.train(told, tmp_path / "run")) == {"said": 4}


def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    told = attached(tmp_path, "")
    file = tmp_path / "tasks" / "app" / "task.py"
    file.write_text(re.sub(r"command = .*", 'command = ("no-such-program",)', file.read_text()))
    with pytest.raises(ConfigError, match="no-such-program can't be started"):
        orchestry.train(told, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    end = (
        "import subprocess, time; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(note)!r}, 'a').write(f'{{os.getpid()}} {{child.pid}}\\n'); time.sleep(60)"
    )
    with pytest.raises(TaskError, match="did not end for 5 s on problem"):
        orchestry.train(attached(tmp_path, end, timeout_s="5.0"), tmp_path / "run")
    gone(note)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
