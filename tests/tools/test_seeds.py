"""docs/seeds.md: what shows each item is there, and its commands run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in re.findall(r"^\| .*\|$", PAGE, flags=re.MULTILINE)
    if not line.startswith("| item")
]
SHOWN = {row[0]: row[-1].strip("`") for row in ROWS}
COMMANDS = list(dict.fromkeys(text for text in SHOWN.values() if " " in text and text[0] != "["))
(FIRST,) = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path) -> None:
    """A command of the page, in a folder of its own as a user has one."""
    words = shlex.split(command)
    own = [sys.executable, *(["-m", "orchestry"] if words[0] == "orchestry" else [])]
    done = subprocess.run([*own, *words[1:]], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_item_is_shown_or_left_out_with_a_reason(row: list[str]) -> None:
    assert len(row) == 3, f"a row has three cells: {row}"
    shown = row[2].strip("`")
    if not shown:
        assert row[1].startswith("left out: ")
    elif shown not in COMMANDS and shown[0] != "[":  # links are tested with those of other pages
        assert (ROOT / shown).is_file()


@pytest.mark.slow
def test_each_command_runs(tmp_path: Path) -> None:
    """In one test, since all stand on the page's first runs."""
    for name in ("tasks", "behaviors"):
        (tmp_path / name).symlink_to(ROOT / name)
    for command in (*FIRST.splitlines(), *COMMANDS):
        run(command, tmp_path)
