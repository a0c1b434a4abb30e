"""configs/default.yaml says what the config says today."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from orchestry.core.config import AgentConfig, RunConfig, validate
from orchestry.core.resolve import read_config_file
from tools.defaults import COMMAND, EDITORS, PAGE, page
from tools.keys import sections


def test_the_file_is_what_the_config_says_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"configs/default.yaml is not what the config says now: run `{COMMAND}` and commit the file"
    )


def test_it_sets_nothing_and_shows_the_defaults(tmp_path: Path) -> None:
    assert read_config_file(PAGE) == {}
    shown = tmp_path / "shown.yaml"
    shown.write_text(re.sub(r"^# ", "", page().removeprefix(EDITORS), flags=re.MULTILINE))
    data = read_config_file(shown)
    config = validate(data)
    assert config.agents == {"ROLE": AgentConfig()}
    assert (config.prices["MODEL"].input, config.prices["MODEL"].output) == (3.0, 15.0)
    without = {**data, "agents": {}, "prices": {}}
    assert without == yaml.safe_load(RunConfig().to_yaml())


def test_a_key_can_be_set_as_the_head_says() -> None:
    above: list[str] = []
    for line in page().removeprefix(EDITORS).splitlines():
        if line.startswith("# "):
            key = line[2:]
            del above[(len(key) - len(key.lstrip())) // 2 :]
            above.append(key)
            data = yaml.safe_load("\n".join(above))
            for one in above:
                data = data[one.split(":")[0].strip()]


def test_no_sentence_ends_within_a_bracket() -> None:
    words = re.sub(r"^##+ *", "", page(), flags=re.MULTILINE)
    for block in re.split(r"^# .*$", words, flags=re.MULTILINE):
        assert block.count("(") == block.count(")"), block


def test_every_key_is_there_below_a_sentence() -> None:
    lines = page().splitlines()
    for section in sections():
        for key in section.keys:
            depth = 2 * section.name.count(".") + 2 * bool(section.name)
            wanted = re.compile(rf"##? {' ' * depth}{key.name}: ")
            places = [place for place, line in enumerate(lines) if wanted.match(line)]
            assert places, f"{section.name}.{key.name}"
            assert all(re.match(r"###? +\S", lines[place - 1]) for place in places), key.name
