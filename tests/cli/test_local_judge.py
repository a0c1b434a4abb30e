"""A judge part in local training: asked over HTTP, under the run's budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("torch")

from orchestry.judge.prompt import label
from orchestry.store.journal import Reserved
from orchestry.store.run import Run, load_run
from tests.backends.letters import EVERY, GROUP, TASK, adapters, learned, settings, write_task
from tests.backends.local.tiny import tiny_folder
from tests.cli.support import CommandLine, chat, message, served, stream

Vendor = Literal["anthropic", "openai"]
EPISODES = 3 * EVERY
PRICE = 1.0
"""Dollars per call, for the 5 tokens of an answer."""
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


def ratings(number: int) -> str:
    """One answer of a judge, other at each call."""
    places = range(GROUP)
    scales = ("quality", "collaboration", "efficiency")
    return json.dumps(
        {
            label(place): {"feedback": "ok", **dict.fromkeys(scales, (3 * place + number) % 11)}
            for place in places
        }
    )


@contextmanager
def judging(vendor: Vendor) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A judge's server, and the requests that it got."""
    asked = list[dict[str, Any]]()

    def answer(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body)
        kind: Callable[[str], bytes] = chat
        if vendor == "anthropic":
            kind = stream if body.get("stream") else message
        return 200, kind(ratings(len(json.dumps(body["messages"]))))

    with served(answer) as url:
        yield url, asked


@pytest.fixture
def sets(tmp_path: Path) -> Callable[[str, Vendor], list[str]]:
    model = str(tiny_folder(tmp_path / "tiny"))
    tasks = write_task(tmp_path / "tasks", TASK)

    def found(url: str, vendor: Vendor) -> list[str]:
        path = "/v1" if vendor == "openai" else ""
        judge = (
            *("judge.enabled=true", "judge.weight=0.5", "judge.every=2", "judge.repeats=1"),
            *(f"judge.provider.name={vendor}", "judge.provider.model=critic"),
            *(f"judge.provider.base_url={url}{path}", "retry.attempts=1"),
            *(
                "prices.critic.input=0",
                f"prices.critic.output={PRICE / 5 * 1e6}",
                "cache.enabled=false",
            ),
        )
        words = settings(model, tasks, f"episodes={EPISODES}", *judge)
        return [word for item in words for word in ("--set", item)]

    return found


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_it_stops_at_the_cap_with_code_3_and_goes_on(
    vendor: Vendor,
    sets: Callable[[str, Vendor], list[str]],
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "k")
    with judging(vendor) as (url, asked):
        words = sets(url, vendor)
        whole = run_of(cli, tmp_path / "whole", words, 0, 1000.0)
        assert len(asked) == EPISODES // 2  # judge.every=2
        assert whole.summary.cost_usd == pytest.approx(PRICE * len(asked))
        rated = [e.episode for e in whole.episodes if e.judgements]
        assert rated == list(range(0, EPISODES, 2))
        worst = max(event.usd for event in whole.events if isinstance(event, Reserved))
        cap = worst + 3.5 * PRICE  # four calls are within it
        part = run_of(cli, tmp_path / "part", words, 3, cap)
        assert part.summary.stopped == "budget"
        assert 0 < part.summary.cost_usd <= 4 * PRICE
        assert 0 < len(learned(part)) < len(learned(whole))
        assert all(episode in whole.episodes for episode in part.episodes)
        result = cli("resume", part.folder, "--budget", "1000")
        assert result.code == 0, result
    resumed = load_run(part.folder)
    assert resumed.episodes == whole.episodes
    assert adapters(resumed.folder) == adapters(whole.folder)


def run_of(cli: CommandLine, folder: Path, words: list[str], code: int, usd: float) -> Run:
    result = cli("run", "--run-dir", folder, *words, "--budget", usd)
    assert result.code == code, result
    return load_run(folder)
