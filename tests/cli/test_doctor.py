"""`orchestry doctor`: what is broken is a line among the others, never the end of the list."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import CommandLine, Reply, chat, message, served

KEY = "sk-of-this-user-0123456789"


def test_weights_that_are_not_there_are_a_bad_check(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRY_WEIGHTS", "/nowhere/m.gguf")
    result = cli("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert result.code == 1
    assert checks["weights"]["mark"] == "bad"
    assert "unset it" in checks["weights"]["found"]
    assert "user cache" in checks


@pytest.mark.parametrize("secret", ["?key=hush", "/v1?key=hush", "#hush"])
def test_an_address_is_shown_without_what_may_be_secret(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"https://me:hush@example.org{secret}")
    result = cli("doctor", "--json")
    assert "hush" not in result.out
    assert "https://example.org" in result.out


def test_each_provider_of_a_config_is_looked_at(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    path = tmp_path / "team.yaml"
    path.write_text(
        "provider: {name: fake}\n"
        "agents:\n  writer: {provider: anthropic}\n  reviewer: {provider: {model: fake-2}}\n"
    )
    result = cli("doctor", "--json", "--config", str(path))
    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert result.code == 1
    assert checks["provider"]["found"] == "fake/fake-1"
    assert checks["agents.reviewer.provider"]["found"] == "fake/fake-2"
    assert checks["agents.writer.provider"]["mark"] == "bad"
    assert "ANTHROPIC_API_KEY is not set" in checks["agents.writer.provider"]["found"]


def installed(folder: Path, name: str, *about: str) -> None:
    """A distribution as pip lays it out."""
    info = folder / f"{name}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *about, ""]))


def test_a_strangers_package_of_our_name_is_broken_and_an_old_one_of_ours_is_not(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    old = ("Name: orchestry", "Version: 0.0.9", "Author: The Orchestry maintainers")
    installed(tmp_path, "orchestry-0.0.9", *old)
    assert cli("doctor").code == 0
    stranger = ("Name: orchestry", "Version: 1.0.1", "Summary: Runs containers.", "Author: Someone")
    installed(tmp_path, "orchestry-1.0.1", *stranger)
    result = cli("doctor", "--json")
    (check,) = (c for c in json.loads(result.out)["checks"] if c["mark"] == "bad")
    assert result.code == 1
    assert "orchestry 1.0.1 at" in check["found"]
    assert "another project's (Runs containers.)" in check["found"]
    assert check["fix"].startswith("pip uninstall orchestry orchestry-marl, then install")


def test_a_package_that_lacks_a_library_of_the_system_is_broken(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "libgomp.so.1: cannot open shared object file"
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({said!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    installed(tmp_path, "xllamacpp-1.0", "Name: xllamacpp", "Version: 1.0")
    result = cli("doctor", "--json")
    (check,) = (c for c in json.loads(result.out)["checks"] if c["mark"] == "bad")
    assert result.code == 1
    assert check["name"] == "xllamacpp"
    assert check["found"] == f"1.0 can't be imported: {said}"


def tried(cli: CommandLine, *words: str) -> tuple[int, dict[str, str]]:
    """What each key came to, and the exit code; no key is shown."""
    result = cli("doctor", "--keys", "--json", *words)
    assert KEY not in result.out + result.err
    checks = json.loads(result.out)["checks"]
    found = {check["name"]: check["found"] for check in checks if "tried" in check["name"]}
    return result.code, found


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{vendor}_API_KEY", KEY)


def test_a_key_is_tried_with_one_token(
    cli: CommandLine, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[dict[str, Any]]()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        asked.append(body)
        return 200, message("Hi") if "system" in body or number == 0 else chat("Hi")

    with served(answer) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_MODEL", "gpt-4.1-nano")
        code, found = tried(cli)
    assert code == 0
    assert found["ANTHROPIC_API_KEY tried"].startswith("ok: claude-haiku-5-5 answered, for $0.0000")
    assert found["OPENAI_API_KEY tried"].startswith("ok: gpt-4.1-nano answered, for $0.0000")
    assert [body["max_tokens"] for body in asked] == [1, 1]
    assert not list(Path().rglob("journal.jsonl"))


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (401, {"message": f"bad key {KEY}"}, "refused: .*check the key in ANTHROPIC_API_KEY"),
        (404, {"message": "no such model"}, "refused: .*check the model's name"),
        (429, {"message": "slow down"}, "unreachable: .*try again later"),
        (400, {"message": "max_tokens or model output limit was reached"}, "ok: .* takes it"),
    ],
)
def test_a_vendors_no_comes_with_the_fix_after_one_attempt(
    cli: CommandLine,
    keys: None,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    error: dict[str, str],
    said: str,
) -> None:
    asked = list[int]()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        asked.append(number)
        return status, json.dumps({"error": error}).encode()

    monkeypatch.delenv("OPENAI_API_KEY")
    with served(answer) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        code, found = tried(cli)
    assert re.fullmatch(f"(?s){said}.*", found["ANTHROPIC_API_KEY tried"]), found
    assert code == (0 if said.startswith("ok") else 1)
    assert asked == [0]


def test_a_server_that_is_not_there_and_a_call_that_is_too_dear_are_told(
    cli: CommandLine, keys: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with served(lambda number, body: (200, b"")) as url:
        pass  # nothing listens there any more
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_MODEL", "mine")
    path = tmp_path / "mine.yaml"
    path.write_text("prices: {mine: {input: 1000, output: 0}}\n")
    code, found = tried(cli, "--config", str(path))
    assert code == 1
    assert found["ANTHROPIC_API_KEY tried"].startswith("unreachable: nothing answers")
    assert "not tried: a call of mine could cost $" in found["OPENAI_API_KEY tried"]


def test_without_a_key_nothing_is_tried(cli: CommandLine) -> None:
    assert "none is set" in cli("doctor", "--keys").out


SMI = """#!/bin/sh
echo "NVIDIA A100-SXM4-80GB, 81920, 81000, 570.86, 8.0"
echo "Tesla T4, 15360, 15000, 570.86, 7.5"
"""


def test_each_gpu_is_a_line_and_what_fits_is_its_memory(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    checks = {c["name"]: c for c in json.loads(cli("doctor", "--json").out)["checks"]}
    assert (
        "NVIDIA A100-SXM4-80GB, 85.9 GB, 84.9 GB free, driver 570.86, bfloat16"
        in (checks["gpu 0"]["found"])
    )
    assert "no bfloat16" in checks["gpu 1"]["found"]
    assert "84.9 GB free" in checks["fits"]["found"]
    assert "Qwen2.5-Coder-7B-Instruct" in checks["fits"]["found"]


def test_without_a_gpu_it_says_what_to_do(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {c["name"]: c for c in json.loads(cli("doctor", "--json").out)["checks"]}
    assert checks["gpu"]["mark"] == "absent"
    assert checks["gpu"]["found"] == "no nvidia-smi on PATH"
    assert "computes on the CPU" in checks["gpu"]["fix"]
    assert "cores for this process: " in checks["cpu"]["found"]
    assert checks["vllm"]["mark"] == "ok" or "learn.vllm_url" in checks["vllm"]["fix"]


def test_what_a_model_needs_is_told_in_several_ways(cli: CommandLine) -> None:
    shown = json.loads(cli("doctor", "--json", "--fits", "1.5b-instruct", "--gpu", "l4").out)
    fits = [check for check in shown["checks"] if check["name"] == "fits"]
    assert len(fits) == 4
    assert "4-bit, 2 agents, group 4, 512 tokens: about" in fits[1]["found"]
    assert {check["mark"] for check in fits} == {"ok"}
    assert "of 24 GB free" in fits[0]["found"]
    alone = json.loads(cli("doctor", "--json", "--fits", "1.5b-instruct").out)["checks"]
    assert not [one for one in alone if one["name"] == "fits" and "4-bit" in one["found"]]
    large = cli("doctor", "--json", "--fits", "7b", "--gpu", "t4").out
    marks = [c["mark"] for c in json.loads(large)["checks"] if c["name"] == "fits"]
    assert marks[0] == "absent"
    cli("doctor", "--fits", "qwen3").failed(2, "qwen3 is a part of Qwen/Qwen3-0.6B, ")
    cli("doctor", "--fits", "nobody/knows").failed(2, "the sizes of nobody/knows are not known")
    cli("doctor", "--gpu", "t5").failed(2, "unknown GPU 't5'")


def test_a_model_that_is_here_is_timed(cli: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    folder = tiny_folder(tmp_path / "tiny")
    checks = json.loads(cli("doctor", "--json", "--fits", str(folder)).out)["checks"]
    (time,) = (check["found"] for check in checks if check["name"] == "time")
    told = r": about [\d,]+ (s|min|h)( \d+ (s|min))? per update of 8 problems, if all prompts"
    assert re.search(told, time)
    elsewhere = json.loads(cli("doctor", "--json", "--fits", str(folder), "--gpu", "l4").out)
    assert not [check for check in elsewhere["checks"] if check["name"] == "time"]


BODY = """
provider: {model: openai/own, extra_body: {top_k: 1}, rename: {max_tokens: max_new_tokens}}
judge: {provider: {model: openai/judge, system: user}}
behaviors:
  provider: {name: openai, model: author, headers: {x-team: blue}, extra_body: {top_k: 2}}
agents: {writer: {model: openai/own}, reviewer: {model: anthropic/claude-haiku-5-5}}
prices:
  own: {input: 1, output: 1}
  openai/judge: {input: 1, output: 1}
  author: {input: 1, output: 1}
"""


def test_keys_are_tried_with_the_settings_of_run_judge_and_author(
    cli: CommandLine, keys: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = dict[str, dict[str, Any]]()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        asked[body["model"]] = body
        return 200, message("Hi") if body["model"].startswith("claude") else chat("Hi")

    (tmp_path / "team.yaml").write_text(BODY)
    with served(answer) as url:
        for vendor in ("ANTHROPIC", "OPENAI"):
            monkeypatch.setenv(f"{vendor}_BASE_URL", url)
        code, found = tried(cli, "--config", str(tmp_path / "team.yaml"))
    assert code == 0
    assert {name: text.partition(" answered")[0] for name, text in found.items()} == {
        "OPENAI_API_KEY tried": "ok: own",
        "OPENAI_API_KEY of judge.provider tried": "ok: judge",
        "OPENAI_API_KEY of behaviors.provider tried": "ok: author",
        "ANTHROPIC_API_KEY of agents.reviewer.provider tried": "ok: claude-haiku-5-5",
    }
    assert (asked["own"]["top_k"], asked["own"]["max_new_tokens"]) == (1, 1)
    assert asked["judge"]["top_k"] == 1, "a judge of the run's own provider is asked as the run is"
    assert asked["author"]["top_k"] == 2


def test_a_server_without_a_key_is_tried_too(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with served(lambda number, body: (200, chat("Hi"))) as url:
        monkeypatch.setenv("OLLAMA_HOST", url)
        (tmp_path / "team.yaml").write_text("provider: {model: ollama/llama3}\n")
        code, found = tried(cli, "--config", str(tmp_path / "team.yaml"))
    assert code == 0
    assert found == {"OPENAI_API_KEY tried": "ok: llama3 answered, for $0.000000"}
