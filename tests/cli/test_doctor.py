"""`orchestry doctor`: what is broken is a line among the others, never the end of the list."""

from __future__ import annotations

import json

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
