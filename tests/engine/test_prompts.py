"""The exported prompts of an api run: the same requests in another run, and in plain Python."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.backends.library import (
    Behavior,
    Evidence,
    Library,
    empty_library,
    to_yaml,
    told,
)
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import Example
from orchestry.engine.prompts import export_prompts
from orchestry.store.journal import Reserved
from orchestry.store.run import Run
from tests.cli.support import chat, message, served
from tests.engine.test_authors import WORDS

ODD = 'Say "a": \t{x} # no\n\n- \\n it\'s """so"""\n```\nß\u2028 end '
RULE = ODD.replace("\u2028", "")
MOVE = Example(asked="Which letter?\n  Say it. ", answered="the letter: a\n")
SETS = (*WORDS, "episodes=2", "behaviors.enabled=false", "agents.reviewer.max_tokens=77")


def library(model: str = "fake-1") -> Library:
    """One behaviour of each kind."""
    found = empty_library("words", model)
    for one in (
        Behavior(
            agent="writer",
            text="Be short.",
            status="accepted",
            evidence=Evidence(pairs=90, lift=0.1, low=0.02, high=0.18, e_value=50, level=0.025),
            retest=Evidence(pairs=24, lift=0.01, low=-0.2, high=0.22, level=0.05),
        ),
        Behavior(agent="writer", kind="example", text=told(MOVE), status="accepted"),
        Behavior(
            agent="reviewer", kind="prompt", text=ODD.replace("\u2028", ""), status="accepted"
        ),
        Behavior(agent="reviewer", text="Never tried.", status="candidate"),
    ):
        found = found.put(one)
    return found


def played(folder: Path, *sets: str, model: str = "fake-1") -> Run:
    """A run whose team has that library."""
    file = folder / "library.yaml"
    file.write_text(to_yaml(library(model)), encoding="utf-8")
    config = resolve([], [*SETS, *sets, f"behaviors.from={file}"])
    return orchestry.train(config, folder / "run")


def asked(run: Run) -> list[str]:
    return [event.key for event in run.events if isinstance(event, Reserved)]


def turns(run: Run) -> dict[str, list[dict[str, str]]]:
    """By agent, the messages of one of its turns."""
    return {
        turn.agent: [message.model_dump() for message in turn.messages]
        for node in run.episodes[0].nodes
        for turn in node.turns
    }


def python(folder: Path) -> dict[str, Any]:
    known: dict[str, Any] = {"__builtins__": {"range": range}}
    exec((folder / "team.py").read_text(encoding="utf-8"), known)
    return known


def test_a_run_of_the_exported_config_makes_the_same_requests(tmp_path: Path) -> None:
    run = played(tmp_path)
    found = export_prompts(run.folder)
    assert found.folder == run.folder / "export" / "update-0"
    assert [(one.agent, one.kind) for one in found.accepted] == [
        ("writer", "rule"),
        ("writer", "example"),
        ("reviewer", "prompt"),
    ]
    sets = [*SETS[1:-1], "cache.enabled=false"]
    again = orchestry.train(resolve([found.folder / "team.yaml"], sets), tmp_path / "again")
    assert asked(again) == asked(run)
    bare = orchestry.train(resolve([], [*SETS, "cache.enabled=false"]), tmp_path / "bare")
    assert not {*asked(bare)} & {*asked(run)}


def test_the_python_file_imports_nothing_and_makes_the_same_chats(tmp_path: Path) -> None:
    run = played(tmp_path)
    folder = export_prompts(run.folder, tmp_path / "out").folder
    known = python(folder)
    assert {role: own["max_tokens"] for role, own in known["TEAM"].items()}["reviewer"] == 77
    for role, turn in turns(run).items():
        assert known["messages"](role, turn[-1]["content"]) == turn
    text = (folder / "README.md").read_text(encoding="utf-8")
    for role in known["TEAM"]:
        assert f"\n## {role}\n" in text
    assert "No vendor has fake-1: give `OpenAI(base_url=...)`" in text
    assert "- writer, rule `" in text
    assert ": +10.0 points [+2.0, +18.0] on 90 pairs, e-value 50 (40 decides); again: +1.0" in text
    assert MOVE.asked.rstrip() in text


@pytest.mark.slow
@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize(("vendor", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_the_readmes_code_runs(
    vendor: str, path: str, prompted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(vendor)
    bodies: list[dict[str, Any]] = []

    def answer(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        bodies.append(body)
        return 200, chat("said") if vendor == "openai" else message("said")

    with served(answer) as url:
        where = (f"provider.name={vendor}", "provider.model=m", f"provider.base_url={url}{path}")
        priced = ("prices.m.input=1", "prices.m.output=5", "judge.enabled=false")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        if prompted:
            run = played(tmp_path, *where, *priced, model="m")
        else:
            sets = [*SETS, *where, *priced, "agents.writer.system_prompt="]
            run = orchestry.train(resolve([], sets), tmp_path / "run")
        folder = export_prompts(run.folder, tmp_path / "out").folder
        (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        assert len(code.splitlines()) <= 6
        assert "No vendor" not in (folder / "README.md").read_text()
        monkeypatch.setenv(f"{vendor.upper()}_BASE_URL", f"{url}{path}")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "team", raising=False)
        before = bodies[0]
        exec(code, {})
    monkeypatch.delitem(sys.modules, "team")
    sent = bodies[-1]
    assert sent["model"] == "m"
    assert said(sent)[:-1] == said(before)[:-1]
    assert said(sent)[-1] == "..."


def test_each_agent_is_asked_by_its_own_vendors_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    with served(
        lambda number, body: (200, message("said") if "system" in body else chat("said"))
    ) as url:
        for vendor in ("ANTHROPIC", "OPENAI"):
            monkeypatch.setenv(f"{vendor}_BASE_URL", url)
        models = ("agents.writer.model=openai/own", "agents.reviewer.model=claude-haiku-5-5")
        sets = [one for one in SETS if "provider.name" not in one]
        priced = ("prices.own.input=1", "prices.own.output=5", "judge.enabled=false")
        run = orchestry.train(resolve([], [*sets, *models, *priced]), tmp_path / "run")
        page = (export_prompts(run.folder, tmp_path / "out").folder / "README.md").read_text()
    writer, reviewer = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert f'OpenAI(base_url="{url}").chat' in writer
    assert f'Anthropic(base_url="{url}").messages' in reviewer
    assert 'TEAM["reviewer"]' in reviewer
    assert "Who answered: openai/own, anthropic/claude-haiku-5-5." in page


@pytest.mark.parametrize(("vendor", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_the_readmes_code_asks_a_server_as_the_run_did(
    vendor: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields that are added, and headers whose keys stay in the environment."""
    pytest.importorskip(vendor)
    bodies, heard = list[dict[str, Any]](), list[Mapping[str, str]]()
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}

    def answer(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        bodies.append(body)
        if vendor == "openai":
            return 200, chat("said")
        told = json.loads(message("said"))
        return 200, json.dumps({**told, "content": [thought, *told["content"]]}).encode()

    monkeypatch.setenv("MY_KEY", "hush-0123456789")
    for name in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{name}_API_KEY", "k")
    with served(answer, heard) as url:
        where = [f"provider.name={vendor}", "provider.model=m", f"provider.base_url={url}{path}"]
        extra = "{chat_template_kwargs: {fast: true}, top_k: 3, seed: null}"
        where += [f"provider.extra_body={extra}", "provider.headers={x-key: 'Key ${MY_KEY}'}"]
        priced = ("prices.m.input=1", "prices.m.output=5", "judge.enabled=false")
        run = orchestry.train(resolve([], [*SETS, *where, *priced]), tmp_path / "run")
        folder = export_prompts(run.folder, tmp_path / "out", trust=True).folder
        page = (folder / "README.md").read_text()
        assert "hush" not in page
        (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "team", raising=False)
        exec(code, {})
    monkeypatch.delitem(sys.modules, "team")
    assert {one["x-key"] for one in heard} == {"Key hush-0123456789"}
    for name in ("model", "top_k", "chat_template_kwargs"):
        assert bodies[-1][name] == bodies[0][name]
    assert said(bodies[-1])[-1] == "..."


def said(body: dict[str, Any]) -> list[str]:
    """The texts of a request, the system prompt first."""
    contents = [body["system"]] if "system" in body else []
    contents += [one["content"] for one in body["messages"]]
    return [one if isinstance(one, str) else "".join(b["text"] for b in one) for one in contents]


def test_any_prompt_comes_back_as_it_is(tmp_path: Path) -> None:
    texts = ("", " a", "a\n", "a\n\n", "\ta\n b\n", ODD, "yes", "1", "ü\n: x")
    for number, text in enumerate(texts):
        sets = [*SETS, "episodes=1"]
        config = resolve([], sets, {"agents": {"writer": {"system_prompt": text}}})
        run = orchestry.train(config, tmp_path / str(number))
        folder = export_prompts(run.folder).folder
        back = resolve([folder / "team.yaml"], [])
        assert back.agents["writer"].system_prompt == text
        assert python(folder)["TEAM"]["writer"]["system_prompt"] == text


@pytest.mark.slow
def test_a_learned_update_can_be_chosen(tmp_path: Path) -> None:
    from tests.engine.test_learning import PLUS, config, model

    with model() as (_, where):
        run = orchestry.train(config(*where), tmp_path / "run")
    last, first = export_prompts(run.folder), export_prompts(run.folder, update=0)
    assert (last.update, last.folder.name) == (4, "update-4")
    assert [one.text for one in last.accepted] == [PLUS]
    assert PLUS in (last.folder / "README.md").read_text()
    assert PLUS not in (first.folder / "README.md").read_text()
    assert "Nothing was accepted" in (first.folder / "README.md").read_text()
    with pytest.raises(ConfigError, match="not empty"):
        export_prompts(run.folder)
