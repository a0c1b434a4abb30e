"""`orchestry doctor`: what is broken is a line among the others, never the end of the list."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.support import CommandLine


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
