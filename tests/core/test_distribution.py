"""Nothing that a user could copy installs the stranger's package that has our import name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from orchestry.core.distribution import NAME, install

ROOT = Path(__file__).parents[2]
FOLDERS = ("orchestry", "tasks", "configs", "docs", "notebooks", "benchmarks", "tools", "tests")
KINDS = {".py", ".md", ".ipynb", ".toml", ".yaml", ".yml", ".txt", ".html", ".js", ".svg", ""}
TEXTS = [
    path
    for place in (ROOT.glob("*"), *((ROOT / name).rglob("*") for name in (*FOLDERS, ".ci")))
    for path in place
    if path.is_file() and path.suffix in KINDS and path != Path(__file__)
]
STRANGER = re.compile(r"""\borchestry\\*\[[a-z{]|pip3? install (-\S+ )*["']*orchestry\b(?!-marl)""")


def test_no_text_installs_the_stranger() -> None:
    assert len(TEXTS) > 300
    found = [path for path in TEXTS if STRANGER.search(path.read_text("utf-8", "replace"))]
    assert found == []


def test_the_name_stands_once_in_the_code_and_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    code = [path for path in (ROOT / "orchestry").rglob("*.py") if NAME in path.read_text()]
    assert project["name"] == NAME
    assert [path.name for path in code] == ["distribution.py"]
    assert install("local") == f'pip install "{NAME}[local]"'
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    assert {item.partition("[")[0] for item in extras if item.startswith("orchestry")} == {NAME}
