"""Frozen partners: agents that stay as they are while others learn beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.engine.estimate import estimate
from orchestry.engine.evaluate import evaluate
from orchestry.engine.export import export
from orchestry.engine.run import prepare, resume
from orchestry.store.journal import Answered
from orchestry.store.run import Run
from tests.backends.letters import EVERY, GROUP, adapters, config, learned, turns
from tests.engine.test_faults import serving

pytestmark = pytest.mark.usefixtures("one_thread")
PRICES = ("prices.served.input=2", "prices.served.output=10")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")


def beside(url: str, *more: str) -> tuple[str, ...]:
    """A served agent on the right, which is paid."""
    asked = f"{{name: openai, model: served, base_url: '{url}/v1', timeout_s: 30}}"
    own = ("agents.right.frozen=true", f"agents.right.provider={asked}", "cache.enabled=false")
    return (*own, *PRICES, "retry.base_s=0.005", "retry.max_s=0.02", *more)


def by_agent(run: Run) -> dict[str, set[bytes]]:
    """The adapters that the run saved, by agent."""
    found: dict[str, set[bytes]] = {}
    for name, content in adapters(run.folder).items():
        found.setdefault(name.split("/")[2], set()).add(content)
    return found


@pytest.fixture(scope="module")
def half(model: str, tasks: Path, finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The team of another run goes on, of which the right one is frozen."""
    start = f"learn.from={finished.folder / 'checkpoints' / '000008'}"
    return orchestry.train(
        config(model, tasks, "agents.right.frozen=true", start),
        tmp_path_factory.mktemp("f") / "run",
    )


def test_a_frozen_agent_keeps_its_adapter(half: Run, finished: Run) -> None:
    found = by_agent(half)
    (kept,) = found["right"]
    assert len(found["left"]) == 2
    began = finished.folder / "checkpoints" / "000008" / "right" / "adapter_model.safetensors"
    assert kept == began.read_bytes()
    for event in learned(half):
        assert set(event.state["norms"]) == {"left"}
        assert event.state["samples"] + event.state["skipped"] == EVERY * GROUP


def test_a_team_with_a_frozen_agent_is_exported_without_it(half: Run, tmp_path: Path) -> None:
    assert [one.agents for one in export(half.folder, tmp_path / "all").adapters] == [("left",)]
    one = export(half.folder, tmp_path / "one", agents=["right"])
    assert [each.agents for each in one.adapters] == [("right",)]


def test_a_resumed_run_with_a_frozen_agent_is_the_same_to_the_bit(
    half: Run, finished: Run, model: str, tasks: Path, tmp_path: Path
) -> None:
    start = f"learn.from={finished.folder / 'checkpoints' / '000008'}"
    sets = ("agents.right.frozen=true", start, "episodes=6")
    begun = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert adapters(resume(begun.folder, {"episodes": 8}).folder) == adapters(half.folder)


@pytest.mark.slow
def test_weights_learn_beside_an_agent_of_an_api(model: str, tasks: Path, tmp_path: Path) -> None:
    with serving() as (url, server):
        run = orchestry.train(config(model, tasks, *beside(url)), tmp_path / "run")
        assert run.summary.stopped == "done"
        assert run.summary.calls_by_provider == {"local": 32, "openai": 32}
        assert server.bill.requests == 32
        assert run.summary.cost_usd == pytest.approx(server.bill.usd)
        assert run.summary.cost_usd > 0
        assert set(by_agent(run)) == {"left"}
        assert len(by_agent(run)["left"]) == 2
        said = [turn for one in run.episodes for turn in turns(one) if turn.agent == "right"]
        assert {turn.completion.model for turn in said} == {"served"}
        assert {turn.completion.tokens for turn in said} == {None}

        begun = orchestry.train(
            config(model, tasks, *beside(url, "episodes=6")), tmp_path / "begun"
        )
        assert server.bill.requests == 32 + 24
        whole = resume(begun.folder, {"episodes": 8})  # plays two episodes again
        assert server.bill.requests == 32 + 32
        assert adapters(whole.folder) == adapters(run.folder)
        paid = [e for e in whole.events if isinstance(e, Answered) and e.source == "provider"]
        assert len({event.key for event in paid}) == len(paid) == 32

        measured = evaluate(run, "dev")
        assert measured.summary.calls_by_provider == {"local": 16, "openai": 16}


def test_a_run_beside_an_api_stops_at_its_cap(model: str, tasks: Path, tmp_path: Path) -> None:
    with serving() as (url, server):
        sets = beside(url, "budget.usd=0.002")
        run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
        assert run.summary.stopped == "budget"
        assert server.bill.usd <= 0.002
        more = resume(run.folder, {"budget": {"usd": 5.0}})
        assert more.summary.stopped == "done"
        assert server.bill.requests == 32


def test_a_dry_run_counts_the_partners_calls(model: str, tasks: Path) -> None:
    found = estimate(config(model, tasks, *beside("http://127.0.0.1:9")), {"OPENAI_API_KEY": "x"})
    calls = {row.agent: round(row.calls) for row in found.usage}
    assert calls == {"left": 32, "right": 32}
    assert {row.agent: row.usd > 0 for row in found.usage} == {"left": False, "right": True}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["agents.left.frozen=true", "agents.right.frozen=true"], "all agents of task letters are"),
        (["agents.right.provider=fake"], "or set agents.right.frozen=true, and the others learn"),
        (["agents.right.frozen=true", "learn.shared=true"], "leave out agents.ROLE.frozen"),
        (
            [f"agents.{r}.{w}" for r in ("left", "right") for w in ("frozen=true", "provider=fake")]
            + ["learn.enabled=false"],
            "play them in backend api",
        ),
    ],
)
def test_what_can_not_be_frozen_is_refused(
    model: str, tasks: Path, sets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(config(model, tasks, *sets))


def test_backend_api_has_no_frozen_agents(tasks: Path) -> None:
    sets: list[Any] = ["task=letters", f"task_path=[{tasks}]", "provider.name=fake"]
    with pytest.raises(ConfigError, match="frozen is for backend local, where weights learn"):
        prepare(resolve([], [*sets, "agents.left.frozen=true"]))


def test_claude_beside_weights_takes_no_temperature(model: str, tasks: Path) -> None:
    sets = ("agents.right.frozen=true", "agents.right.provider=anthropic")
    plan = prepare(config(model, tasks, *sets), environ={}, need_key=False)
    assert plan.backend.team(plan.task)["right"].temperature is None
    assert plan.backend.team(plan.task)["left"].temperature == 0.8
