"""`orchestry behaviors`, as a user calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestry.backends.library import Behavior, Library, to_yaml
from tests.cli.support import FAKE, CommandLine

EVIDENCE = {"pairs": 120, "lift": 0.0525, "low": 0.011, "high": 0.093, "e_value": 41.5}
RULE = Behavior.model_validate(
    {
        "agent": "writer",
        "text": "Write one word.\nThen stop [now].",
        "why": "It rambled.",
        "status": "accepted",
        "born": 2,
        "evidence": EVIDENCE | {"level": 0.025, "episodes": [3, 4], "calls": 240, "usd": 0.12},
    }
)
OTHER = Behavior(agent="reviewer", text="Praise " + "very " * 40 + "much.", status="rejected")


def write(path: Path, *behaviors: Behavior, task: str = "words") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    library = Library(task=task, model="fake-1", update=2, behaviors=behaviors)
    path.write_text(to_yaml(library), encoding="utf-8")
    return path


def run(cli: CommandLine, folder: str, *behaviors: Behavior) -> Path:
    """A real run, with that library."""
    assert cli("run", *FAKE, "--run-dir", folder).code == 0
    return write(Path(folder) / "behaviors" / "library.yaml", *behaviors)


def test_list_shows_status_evidence_and_text(cli: CommandLine) -> None:
    write(Path("mine.yaml"), OTHER, RULE)
    result = cli("behaviors", "list", "mine.yaml")
    assert result.code == 0
    lines = [line.rstrip() for line in result.out.splitlines()]
    assert lines[:6] == [
        "mine.yaml: task words, model fake-1, after update 2",
        f"{RULE.id}  writer    rule     accepted",
        "    +5.2 points [+1.1, +9.3] on 120 pairs, e-value 41.5 (40 decides)",
        "    Write one word. Then stop [now].",
        f"{OTHER.id}  reviewer  rule     rejected",
        "    not tried yet",
    ]
    assert lines[6] == f"    {OTHER.text}"


def test_what_a_later_test_found_is_shown_too(cli: CommandLine) -> None:
    write(Path("off.yaml"), OTHER.model_copy(update={"note": "off the front"}))
    assert "    not tried yet; off the front\n" in cli("behaviors", "list", "off.yaml").out
    again = {"pairs": 1, "lift": 0.5, "e_value": 0.25, "level": 0.05, "calls": 6}
    path = write(Path("mine.yaml"), Behavior.model_validate({**RULE.model_dump(), "retest": again}))
    retest = "+50.0 points [-100.0, +100.0] on 1 pair, e-value 0.25 (20 decides)"
    assert f"(40 decides); again: {retest}" in cli("behaviors", "list", path).out
    assert retest in cli("behaviors", "show", RULE.id, path).out


def test_nothing_steers_the_terminal(cli: CommandLine, tmp_path: Path) -> None:
    path = write(Path("dlrow\u202eolleh.yaml"), RULE)
    assert "\u202e" not in cli("behaviors", "list", path).out
    assert "\u202e" not in cli("behaviors", "show", RULE.id, path).out
    own = ("--set", 'agents.writer.system_prompt="Be \\u202eterse \\e[2Jnow."')
    assert cli("run", *FAKE, *own, "--run-dir", "a-run").code == 0
    write(Path("a-run/behaviors/library.yaml"), RULE)
    shown = cli("behaviors", "diff", "a-run").out
    assert "\n Be  terse  [2Jnow.\n" in shown
    assert not {"\u202e", "\x1b"} & set(shown)


def test_list_as_json_is_everything(cli: CommandLine) -> None:
    write(Path("mine.yaml"), RULE, OTHER)
    (library,) = json.loads(cli("behaviors", "list", "mine.yaml", "--json").out)["libraries"]
    file = library.pop("file")
    assert file == "mine.yaml"
    assert Library.model_validate(library).behaviors == (RULE, OTHER)


def test_a_run_and_a_folder_are_places_too(cli: CommandLine) -> None:
    run(cli, "a-run", RULE)
    for name in ("one.yaml", "two.yml"):
        write(Path("shelf", name), OTHER)
    Path("shelf/README.md").write_text("Not a library.\n")
    assert RULE.id in cli("behaviors", "list", "a-run").out
    found = json.loads(cli("behaviors", "list", "shelf", "--json").out)["libraries"]
    assert [library["file"] for library in found] == ["shelf/one.yaml", "shelf/two.yml"]


def test_the_default_is_the_shelf_here_and_the_newest_run(cli: CommandLine) -> None:
    write(Path("behaviors/words.yaml"), OTHER)
    for age, name in enumerate(("b", "a", "c")):
        kept = write(Path("runs", name, "behaviors", "library.yaml"), RULE)
        os.utime(kept, (1000 - age, 1000 - age))
    found = json.loads(cli("behaviors", "list", "--json").out)["libraries"]
    files = [library["file"] for library in found]
    assert files == ["behaviors/words.yaml", "runs/b/behaviors/library.yaml"]


def test_show_has_the_whole_text_and_the_evidence(cli: CommandLine) -> None:
    write(Path("mine.yaml"), RULE, OTHER)
    out = cli("behaviors", "show", RULE.id[:5], "mine.yaml").out
    assert "Write one word.\nThen stop [now].\n" in out
    for found in (
        "accepted",
        "+5.2 points [+1.1, +9.3] on 120 pairs, e-value 41.5 (40 decides)",
        "41.5; 40 accepts, at this trial's level of 0.025.",
        "240 calls, $0.1200",
        "3, 4",
        "It rambled.",
    ):
        assert found in out
    assert OTHER.text in cli("behaviors", "show", OTHER.id, "mine.yaml").out
    found = json.loads(cli("behaviors", "show", RULE.id, "mine.yaml", "--json").out)
    assert found.pop("file") == "mine.yaml"
    assert Behavior.model_validate(found) == RULE


def test_diff_of_a_run_shows_its_prompts_before_and_after(cli: CommandLine) -> None:
    run(cli, "a-run", RULE, OTHER)
    out = cli("behaviors", "diff", "a-run").out
    assert out.startswith("--- writer (before)\n+++ writer (after)\n")
    assert "\n You are the writer of a team. write words\n" in out
    assert "\n+- Write one word.\n+  Then stop [now].\n" in out
    assert "reviewer" not in out
    assert json.loads(cli("behaviors", "diff", "a-run", "--json").out) == {"diff": out}


def test_diff_of_a_run_shows_a_whole_prompt_that_was_played_already(cli: CommandLine) -> None:
    learned = Behavior(agent="writer", kind="prompt", text="One word.", status="accepted")
    start = write(Path("start.yaml"), learned)
    tried = Behavior(agent="reviewer", kind="prompt", text="Praise.", status="trial")
    more = ("--set", f"behaviors.from={start}", "--set", "behaviors.enabled=false")
    assert cli("run", *FAKE, *more, "--run-dir", "a-run").code == 0
    write(Path("a-run/behaviors/library.yaml"), learned, tried)
    out = cli("behaviors", "diff", "a-run").out
    assert "--- writer (before)\n+++ writer (after)\n" in out
    assert "\n-You are the writer of a team. write words\n" in out
    assert "\n+One word.\n" in out
    assert "reviewer" not in out


def test_diff_of_a_run_takes_a_prompt_from_its_config(cli: CommandLine) -> None:
    own = ("--set", "agents.writer.system_prompt=Be brief.")
    assert cli("run", *FAKE, *own, "--run-dir", "a-run").code == 0
    write(Path("a-run/behaviors/library.yaml"), RULE)
    assert "\n Be brief.\n" in cli("behaviors", "diff", "a-run").out


def test_diff_of_two_needs_no_task(cli: CommandLine) -> None:
    one = write(Path("one.yaml"), RULE, task="nowhere")
    two = write(Path("two.yaml"), OTHER, task="nowhere")
    assert "\n-- Write one word.\n" in cli("behaviors", "diff", one, two).out
    assert "\n+- Write one word.\n" in cli("behaviors", "diff", two, one).out
    assert cli("behaviors", "diff", one, one).out == "No prompt is changed.\n"
    assert json.loads(cli("behaviors", "diff", one, one, "--json").out) == {"diff": ""}
    cli("behaviors", "diff", one).failed(2, "one.yaml is one library: give a run", "diff A B")


def test_a_bundled_library_is_known_by_its_name(cli: CommandLine) -> None:
    name = "house_style-scripted"
    alone, every = (cli("behaviors", "list", *some).out for some in ((name,), ()))
    assert "task house_style" in alone
    assert alone.strip() in every, "all that ship are listed"
    others = ("code_collaboration-coder", "house_style-coder")
    assert all(one in every.replace(alone.strip(), "") for one in others)
    started = ("--task", "house_style", "--set", f"behaviors.from={name}")
    on = ("--provider", "fake", "--set", "behaviors.enabled=true", "--episodes", "1")
    assert cli("run", *on, *started, "--run-dir", "r").code == 0
    assert "Begin with the severity" in Path("r/behaviors/from.yaml").read_text()
    assert cli("resume", "r", "--episodes", "2").code == 0


def test_what_is_not_there_is_one_line_and_code_2(cli: CommandLine) -> None:
    assert "house_style-scripted" in cli("behaviors", "list").out  # what ships
    cli("behaviors", "list", "nowhere").failed(2, "nowhere does not exist")
    Path("empty").mkdir()
    cli("behaviors", "list", "empty").failed(2, "empty holds no library of behaviours")
    cli("behaviors", "diff", "empty").failed(2, "empty holds no run")
    assert cli("run", *FAKE, "--run-dir", "a-run").code == 0
    if not Path("a-run/behaviors").exists():
        cli("behaviors", "diff", "a-run").failed(2, "a-run holds no library of behaviours")
    write(Path("shelf/one.yaml"), RULE)
    write(Path("shelf/two.yaml"), RULE)
    cli("behaviors", "diff", "shelf", "shelf").failed(2, "give one of one.yaml, two.yaml")
    Path("bad.yaml").write_text("a: [")
    cli("behaviors", "list", "bad.yaml").failed(2, "bad.yaml is not a library of behaviours")


def test_an_id_must_be_known_and_clear(cli: CommandLine) -> None:
    texts = (f"Say {number}." for number in range(40))
    path = write(Path("mine.yaml"), *(Behavior(agent="writer", text=text) for text in texts))
    cli("behaviors", "show", "zzz", path).failed(2, "unknown behaviour 'zzz'")
    cli("behaviors", "show", "", path).failed(2, "begins several ids")
    empty = write(Path("empty.yaml"))
    cli("behaviors", "show", "abc", empty).failed(2, "no behaviour 'abc': empty.yaml is empty")


@pytest.mark.parametrize("columns", ["12", "400"])
def test_any_width_will_do(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    path = write(Path("mine.yaml"), RULE, OTHER)
    assert cli("behaviors", "list", path).code == 0
    shown = cli("behaviors", "show", RULE.id, path)
    assert "Then stop [now].\n" in shown.out
