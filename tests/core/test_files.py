"""Files of YAML from anybody: whatever they hold, one clear error or plain data."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from orchestry.backends.library import read_library
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.files import cache, json_lines, new_folder, parse_yaml, text_of
from orchestry.core.resolve import read_config_file
from orchestry.models.fake import read_script
from orchestry.store.journal import read
from orchestry.store.run import read_config

TAGS = ("bool", "int", "float", "timestamp", "binary", "null", "set", "omap", "pairs", "seq", "map")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.datetimes()
    | st.binary(max_size=9)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = ("version", "task", "model", "update", "behaviors")
BEHAVIOR = ("id", "agent", "kind", "text", "why", "status", "born", "evidence", "note")


def fault(call: Callable[[], object], kind: type[Exception] = ConfigError) -> str:
    """What a call is refused with; '' where it is not."""
    try:
        call()
    except kind as error:
        return str(error)
    return ""


LIBRARIES = st.dictionaries(
    st.sampled_from(KEYS) | st.text(max_size=5), VALUES
) | st.fixed_dictionaries(
    {"task": st.just("t"), "model": st.just("m")},
    optional={
        "behaviors": st.lists(
            st.fixed_dictionaries(
                {"agent": VALUES | st.just("a"), "text": VALUES | st.just("t")},
                optional={key: VALUES for key in BEHAVIOR if key not in ("agent", "text")},
            ),
            max_size=3,
        )
    },
)


@given(
    st.text(max_size=40) | st.builds("!!{} {}".format, st.sampled_from(TAGS), st.text(max_size=9))
)
@example("!!bool maybe")
@example("!!timestamp soon")
@example("!!int ''")
@example("&a [*a]")
@example("a: &a [x, x, x]\nb: &b [*a, *a, *a]\n")
@example("2024-13-45")
@example("[" * 2000)
@pytest.mark.slow
def test_any_text_is_data_or_a_value_error(text: str) -> None:
    assert "\n" not in fault(lambda: parse_yaml(text), ValueError)


def test_aliases_that_grow_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        parse_yaml("\n".join(lines))


@given(LIBRARIES)
@example({"task": "t", "model": "m", "behaviors": [{"agent": 3, "text": "x"}]})
@example({"task": "t", "model": "m", "behaviors": [{"agent": "a", "text": "x"}] * 2})
@pytest.mark.slow
def test_any_library_is_read_or_refused_in_a_line(
    tmp_path_factory: pytest.TempPathFactory, raw: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("library") / "library.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    if said := fault(lambda: read_library(path)):
        assert said.startswith(f"{path} is not a library of behaviours: ")
        assert "\n" not in said
    else:
        library = read_library(path)
        assert len(library.adopted().behaviors) == len(library.behaviors)
        assert library.transferred("other", "model").task == "other"


@given(st.dictionaries(st.sampled_from([*RunConfig.model_fields]) | st.text(max_size=5), VALUES))
@pytest.mark.slow
def test_any_config_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, raw: dict[str, object]
) -> None:
    assume("pydantic" not in str(raw))  # hypothesis tries the words of this file, and is quoted
    folder = tmp_path_factory.mktemp("config")
    (folder / "config.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert "pydantic" not in fault(lambda: validate(read_config(folder)))
    assert "pydantic" not in fault(lambda: validate(read_config_file(folder / "config.yaml")))


def test_the_files_of_a_run_take_no_tag_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: !!bool maybe\n")
    for said in (
        fault(lambda: read_config(tmp_path)),
        fault(lambda: read_config_file(tmp_path / "config.yaml")),
    ):
        assert "a tag such as !!bool does not fit its value" in said


def test_lines_end_where_json_lets_them_end() -> None:
    data = '{"a": "one\u2028two"}\r\n\n  \n{"b": 1}'.encode()
    assert [(number, json.loads(line)) for number, line in json_lines(data)] == [
        (1, {"a": "one\u2028two"}),
        (4, {"b": 1}),
    ]


TEXTS = st.text(st.sampled_from("a \u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\ufeff\U0001f600\r\n{"))


@given(st.lists(TEXTS), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_text_in_json_lines_is_read_back(texts: list[str], end: str, marked: bool) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    data = "".join(f"{chr(0xFEFF) * marked}{line}{end}" for line in lines).encode()
    assert [json.loads(line)["text"] for _, line in json_lines(data)] == texts


@given(TEXTS, st.booleans())
def test_a_text_is_read_without_its_mark(text: str, marked: bool) -> None:
    assume(marked or not text.startswith("\ufeff"))
    read = text_of(("\ufeff" * marked + text).encode())
    assert read == text.replace("\r\n", "\n").replace("\r", "\n")


def test_a_mark_is_no_part_of_what_a_user_wrote(tmp_path: Path) -> None:
    """Files of each kind that a user gives, as Notepad saves them."""
    (tmp_path / "config.yaml").write_bytes(b"\xef\xbb\xbfepisodes: 3\r\n")
    assert read_config_file(tmp_path / "config.yaml") == {"episodes": 3}
    (tmp_path / "script.jsonl").write_bytes(b'\xef\xbb\xbf{"agent": "*", "text": "a"}\r\n')
    assert read_script(tmp_path / "script.jsonl")[0].text == "a"
    (tmp_path / "library.yaml").write_bytes(b"\xef\xbb\xbftask: t\nmodel: m\nbehaviors: []\n")
    assert read_library(tmp_path / "library.yaml").task == "t"
    recorded = Path(__file__).parents[1] / "fixtures" / "recorded" / "code_review"
    (tmp_path / "journal.jsonl").write_bytes(
        b"\xef\xbb\xbf" + (recorded / "journal.jsonl").read_bytes()
    )
    assert [*read(tmp_path / "journal.jsonl")] == [*read(recorded / "journal.jsonl")]


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    with new_folder(tmp_path / "whole") as part:
        (part / "file").write_text("x")
        assert not (tmp_path / "whole").exists()
    with suppress(ValueError), new_folder(tmp_path / "torn") as part:
        (part / "file").write_text("x")
        raise ValueError
    assert [path.name for path in tmp_path.rglob("*")] == ["whole", "file"]


def test_one_cache_for_all(tmp_path: Path) -> None:
    assert cache({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "orchestry"
    assert cache({"XDG_CACHE_HOME": "~/kept"}) == Path.home() / "kept" / "orchestry"
    assert cache({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "orchestry"
