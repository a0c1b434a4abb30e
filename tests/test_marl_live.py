"""`python test_marl.py --live`, against the loopback server: what it finds, and what it spends.

It was never run against a vendor's own API.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server.bill import Options
from benchmarks.server.loopback import spawn

SCRIPT = Path(__file__).parents[1] / "test_marl.py"
KEY = "not-a-key-of-anyone"
PRICES = ("--set", "prices={model-1: {input: 1, output: 5, cached_input: 0.1, cache_write: 1.25}}")
"""Those of the loopback server."""


def live(
    folder: Path, *args: str, url: str = "", key: str = KEY
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    where = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1"} if url else {}
    keys = {"ANTHROPIC_API_KEY": key, "OPENAI_API_KEY": key} if key else {}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--live", *args],
        cwd=folder,
        env={**env, **where, **keys, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )


def played(
    folder: Path, provider: str, *args: str, **options: Any
) -> tuple[subprocess.CompletedProcess[str], list[str], dict[str, Any]]:
    """The checklist against a server of these options, its lines, and the server's bill."""
    with spawn(Options(**options)) as server:
        who = ("--provider", provider, "--model", "model-1", *PRICES)
        done = live(folder, *who, *args, url=server.url)
        assert KEY not in done.stdout + done.stderr
        return done, done.stdout.splitlines(), server.bill()


def total(lines: list[str]) -> float:
    return float(lines[-1].partition("$")[2].split()[0])


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_without_a_key_it_says_which(provider: str, tmp_path: Path) -> None:
    done = live(tmp_path, "--provider", provider, key="")
    assert done.returncode == 2
    assert f"{provider.upper()}_API_KEY is not set: export it" in done.stdout
    assert "ANTHROPIC_API_KEY or OPENAI_API_KEY is not set" in live(tmp_path, key="").stdout


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_every_item_holds_and_the_costs_are_the_servers(provider: str, tmp_path: Path) -> None:
    done, lines, bill = played(tmp_path, provider)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 6
    skipped = "skip (only Claude's prompts are marked for the cache)  The prompt cache"
    for number, line in enumerate(lines[:-1]):
        assert line.startswith(skipped if (provider, number) == ("openai", 1) else "ok    "), (
            done.stdout
        )
    assert total(lines) == pytest.approx(bill["usd"], abs=1e-4)
    assert (bill["cache_read_tokens"] > 0) is (provider == "anthropic")
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


@pytest.mark.slow
def test_faults_are_retried_and_paid_ones_count(tmp_path: Path) -> None:
    script = "rate_limited,-,overloaded,drop,malformed_billed,-,error"
    done, lines, bill = played(tmp_path, "anthropic", script=script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(bill["faults"].values()) == 5
    assert bill["usd"] <= total(lines) <= 0.25


@pytest.mark.slow
def test_it_never_spends_more_than_its_budget(tmp_path: Path) -> None:
    done, lines, bill = played(tmp_path, "anthropic", "--budget", "0.006")
    assert done.returncode == 1
    assert lines[0].startswith("ok    A search")
    assert lines[1].startswith("FAIL (")
    assert "exit code 3" in lines[1]
    assert 0 < bill["usd"] <= total(lines) + 1e-4 <= 0.006


@pytest.mark.slow
def test_a_server_that_refuses_is_named_by_every_item(tmp_path: Path) -> None:
    done, lines, bill = played(tmp_path, "openai", not_found=1.0)
    assert (done.returncode, bill["usd"]) == (1, 0.0)
    failed = [line for line in lines[:-1] if not line.startswith("skip")]
    assert all(line.startswith("FAIL (") for line in failed)
    assert sum("answered 404" in line for line in failed) == 3
    assert lines[-1] == "4 of 5 failed; $0.0000 of $0.25 spent"


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "inf"])
def test_a_budget_that_is_no_cap_is_refused_at_once(budget: str, tmp_path: Path) -> None:
    done = live(tmp_path, "--budget", budget)
    assert done.returncode == 2
    assert f"--budget {budget} is no cap: give dollars above 0" in done.stderr


def test_its_options_need_the_word_live(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--budget", "0.5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "these options need --live" in done.stderr
