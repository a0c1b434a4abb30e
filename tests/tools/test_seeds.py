"""docs/seeds.md: what shows each item is there, and its commands print what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import CommandLine

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r" \|(?= |$)", line.removeprefix("|").removesuffix("|"))]
    for line in re.findall(r"^\| .*\|$", PAGE, flags=re.MULTILINE)
    if not line.startswith("| item")
]
COMMANDS = dict[str, set[str]]()
"""What each command must print or write, in the order of the page."""
for _, _, _shown, _prints in ROWS:
    if " " in (_command := _shown.strip("`")) and _command[0] != "[":
        COMMANDS.setdefault(_command, set()).update(re.findall(r"`([^`]+)`", _prints))
(FIRST,) = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
RUNS = ("runs/search", "runs/weights", "runs/policies", "")
"""The page's runs; a command that names none of them needs none."""


def of(run: str, commands: list[str]) -> list[str]:
    """The commands that name a run; of '', those that name none."""
    others = [other for other in RUNS if other]
    return [c for c in commands if (run in c if run else not any(o in c for o in others))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_item_is_shown_or_left_out_with_a_reason(row: list[str]) -> None:
    assert len(row) == 4, f"a row has four cells: {row}"
    shown = row[2].strip("`")
    if shown in COMMANDS:
        assert re.findall(r"`([^`]+)`", row[3]), "say what the command must print"
    elif not shown:
        assert row[1].startswith("left out: ")
    elif shown[0] != "[":  # links are tested with those of other pages
        assert (ROOT / shown).is_file()


def test_the_rows_stand_for_all_items_of_the_audit() -> None:
    (said,) = re.findall(r"An audit found (\d+) items", PAGE)
    counts = [re.search(r" \((\d+)\)$", row[0]) for row in ROWS]
    assert sum(int(count[1]) if count else 1 for count in counts) == int(said)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run or "none")
def test_each_command_prints_what_the_page_says(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder of its own, from which the repository looks as from its root."""
    for name in ("tasks", "behaviors", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    cli = CommandLine(capsys)
    first = of(run, FIRST.splitlines()) if run else []
    for command in (*first, *of(run, [*COMMANDS])):
        said = " ".join(printed(command, cli).split())
        for phrase in COMMANDS.get(command, ()):
            assert phrase in said, f"{command}\nlacks: {phrase}\n{said}"


def printed(command: str, cli: CommandLine) -> str:
    """What a command prints; of a report, also what it writes."""
    program, *words = shlex.split(command)
    if program == "python":
        return subprocess.check_output([sys.executable, *words], text=True)
    done = cli(*words)
    assert done.code == 0, f"{command}\n{done}"
    written = Path(words[1]).glob("report/[Rs]*.*") if words[0] == "report" else ()
    return "\n".join([done.out, done.err, *(path.read_text("utf-8") for path in written)])
