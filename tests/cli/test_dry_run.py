"""`orchestry run --dry-run`: what stands on which stream."""

from __future__ import annotations

import json

from tests.cli.support import FAKE, CommandLine


def test_what_auto_chose_is_said_on_stderr(cli: CommandLine) -> None:
    result = cli("run", "--dry-run", "--json", "--episodes", 2)
    assert json.loads(result.out)["provider"] == "embedded"
    assert "no ANTHROPIC_API_KEY: using the embedded" in result.err


def test_a_named_provider_needs_no_word(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--dry-run").err == ""
