"""The cache keeps answers apart, runs no code from its folder, and never stops a run."""

from __future__ import annotations

import os
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import diskcache
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.types import Completion, Message, Request, Tokens
from orchestry.models.cache import PER_TRANSACTION, AnswerCache, default_folder
from orchestry.models.request_key import request_digest


def _answer(text: str) -> Completion:
    return Completion(text=text, model="m", input_tokens=3, output_tokens=5, usd=0.25)


def _open(folder: Path) -> tuple[AnswerCache, list[str]]:
    warnings: list[str] = []
    return AnswerCache(folder, warnings.append), warnings


def test_answers_survive_the_process_and_the_batch(tmp_path: Path) -> None:
    cache, _ = _open(tmp_path)
    count = 2 * PER_TRANSACTION + 3
    for j in range(count):
        cache.put(f"k{j}", _answer(f"answer {j}"))
    assert [cache.get(f"k{j}") for j in range(count)] == [
        _answer(f"answer {j}") for j in range(count)
    ]
    cache.close()
    again, warnings = _open(tmp_path)
    assert [again.get(f"k{j}") for j in range(count)] == [
        _answer(f"answer {j}") for j in range(count)
    ]
    assert again.get("another") is None
    again.close()
    assert warnings == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=40), min_size=2, max_size=8))
def test_k_samples_stay_k(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    cache, _ = _open(tmp_path_factory.mktemp("cache"))
    ask = Request(agent="a", model="m", messages=(Message(role="user", content="u"),), max_tokens=9)
    keys = [request_digest(ask.model_copy(update={"sample_index": j})) for j in range(len(texts))]
    for key, text in zip(keys, texts, strict=True):
        cache.put(key, _answer(text.encode("utf-8", "replace").decode()))
    found = [answer.text for key in keys if (answer := cache.get(key))]
    cache.close()
    assert found == [text.encode("utf-8", "replace").decode() for text in texts]


def test_an_answer_comes_back_whole(tmp_path: Path) -> None:
    answer = Completion(
        text="a\x00b\n\u2028é\U0001f600",
        model="m",
        cached_tokens=1,
        cache_write_tokens=2,
        stop="length",
        tokens=Tokens(prompt_ids=(1,), ids=(2, 3), logprobs=(-0.1, -2.5)),
    )
    cache, _ = _open(tmp_path)
    cache.put("k", answer)
    cache.close()
    again, _ = _open(tmp_path)
    assert again.get("k") == answer
    again.close()


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_the_folder_is_never_loaded(tmp_path: Path) -> None:
    bomb, folder = tmp_path / "bomb", tmp_path / "cache"
    cache, _ = _open(folder)
    cache.put("k", _answer("good"))
    cache.close()
    with sqlite3.connect(folder / "cache.db") as db:
        payload = pickle.dumps(_Bomb(bomb))
        db.execute("UPDATE Cache SET mode = 4, value = ?", (sqlite3.Binary(payload),))
    again, warnings = _open(folder)
    assert again.get("k") is None
    assert not bomb.exists()
    assert "damaged and was dropped" in warnings[0]
    assert again.get("k") is None
    assert len(warnings) == 1
    again.close()


def test_a_foreign_row_can_neither_read_nor_delete_files(tmp_path: Path) -> None:
    folder, precious = tmp_path / "cache", tmp_path / "precious"
    precious.write_text('{"text": "stolen", "model": "m"}')
    cache, _ = _open(folder)
    cache.put("k", _answer("good"))
    cache.close()
    with sqlite3.connect(folder / "cache.db") as db:
        db.execute("UPDATE Cache SET mode = 3, filename = '../precious', value = NULL")
    again, _ = _open(folder)
    assert again.get("k") is None
    again.close()
    assert precious.exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"text": 1}', "null", '{"text":"a","model":"m","x":1}']
)
def test_a_damaged_value_is_a_miss_and_is_replaced(tmp_path: Path, text: str) -> None:
    cache_class: Any = diskcache.Cache
    with cache_class(str(tmp_path), disk_min_file_size=2**20) as foreign:
        foreign["k"] = text
    cache, warnings = _open(tmp_path)
    assert cache.get("k") is None
    assert len(warnings) == 1
    cache.put("k", _answer("new"))
    assert cache.get("k") == _answer("new")
    cache.close()


def test_a_file_in_the_folders_place_turns_the_cache_off(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    cache, warnings = _open(tmp_path / "cache")
    cache.put("k", _answer("a"))
    assert cache.get("k") is None
    cache.close()
    assert len(warnings) == 1
    assert "set cache.dir" in warnings[0]


def test_a_database_that_is_none_turns_the_cache_off(tmp_path: Path) -> None:
    (tmp_path / "cache.db").write_bytes(b"this is no database " * 100)
    cache, warnings = _open(tmp_path)
    cache.put("k", _answer("a"))
    cache.close()
    assert len(warnings) == 1


def test_a_full_disk_turns_the_cache_off_once(tmp_path: Path) -> None:
    """SQLite's own limit on pages answers as a full disk does."""
    cache, warnings = _open(tmp_path)
    cache._cache._sql("PRAGMA max_page_count = 1")
    for j in range(4 * PER_TRANSACTION):
        cache.put(f"k{j}", _answer("x" * 4000))
    cache.close()
    assert len(warnings) == 1
    assert "full" in warnings[0]


def test_two_processes_may_share_the_folder(tmp_path: Path) -> None:
    one, _ = _open(tmp_path)
    two, _ = _open(tmp_path)
    for j in range(PER_TRANSACTION):
        one.put(f"k{j}", _answer(str(j)))
    assert two.get("k0") == _answer("0")
    one.close()
    two.close()


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "orchestry" / "answers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "orchestry" / "answers"
