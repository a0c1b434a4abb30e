"""configs/default.yaml says what the config says today."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from orchestry.core.config import RunConfig, read_yaml, validate
from tools.defaults import COMMAND, PAGE, page
from tools.keys import sections


def test_the_file_is_what_the_config_says_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"configs/default.yaml is not what the config says now: run `{COMMAND}` and commit the file"
    )


def test_it_sets_nothing_and_shows_the_defaults(tmp_path: Path) -> None:
    assert read_yaml(PAGE) == {}
    shown = tmp_path / "shown.yaml"
    shown.write_text(re.sub(r"^# ", "", page(), flags=re.MULTILINE))
    data = read_yaml(shown)
    assert data == yaml.safe_load(RunConfig().to_yaml())
    assert validate(data) == RunConfig()


def test_every_key_is_there_below_a_sentence() -> None:
    lines = page().splitlines()
    for section in sections():
        for key in section.keys:
            depth = 2 * section.name.count(".") + 2 * bool(section.name)
            wanted = re.compile(rf"##? {' ' * depth}{key.name}: ")
            places = [place for place, line in enumerate(lines) if wanted.match(line)]
            assert places, f"{section.name}.{key.name}"
            assert all(re.match(r"###? +\S", lines[place - 1]) for place in places), key.name
