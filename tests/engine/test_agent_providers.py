"""A provider per agent: two vendors' servers, one ledger, one cap, one journal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import orchestry
from benchmarks.server.loopback import Loopback
from orchestry.cli.show import figures
from orchestry.cli.watch import who
from orchestry.core.config import RunConfig, resolve, validate
from orchestry.core.errors import ConfigError
from orchestry.core.files import to_yaml
from orchestry.core.resolve import read_config_file
from orchestry.engine.estimate import estimate
from orchestry.engine.run import prepare, resume, run_plan
from orchestry.engine.trust import of_run
from orchestry.report.document import setup
from orchestry.report.runs import Salvaged, read_experiments
from orchestry.report.tables import costs
from orchestry.store.journal import Answered, Opened
from orchestry.store.run import Run
from tests.engine.test_faults import serving
from tests.engine.test_run import Noted

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
CLAUDE, SERVED = "claude-sonnet-5", "served"
CALLS = {"writer": 2, "reviewer": 2, "refactorer": 2}
"""Of an episode: two samples in each of three stages, of a beam of one."""


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none-needed-here")
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")


def config(claude: str, served: str, *sets: str) -> RunConfig:
    """A writer at one vendor, a reviewer at another, and a refactorer at the run's own."""
    agents = {
        "writer": {
            "model": CLAUDE,
            "provider": {"name": "anthropic", "base_url": claude, "timeout_s": 30},
        },
        "reviewer": {
            "provider": {
                "name": "openai",
                "model": SERVED,
                "base_url": f"{served}/v1",
                "timeout_s": 30,
            }
        },
    }
    return resolve(
        sets=[
            *("task=words", f"task_path=[{TASKS}]", "episodes=4", "cache.enabled=false"),
            *("provider.name=fake", f"agents={json.dumps(agents)}"),
            *(
                f"prices.{model}.{way}"
                for model in (CLAUDE, SERVED)
                for way in ("input=2", "output=10")
            ),
            *("search.k_samples=2", "search.beam_width=1", "sampling.max_tokens=32"),
            *("judge.enabled=false", "behaviors.enabled=false"),
            *("retry.base_s=0.005", "retry.max_s=0.02", "retry.patience_s=20"),
            *sets,
        ]
    )


def begin(folder: Path, claude: str, served: str, *sets: str) -> tuple[Run, Noted]:
    watch = Noted()
    return run_plan(prepare(config(claude, served, *sets)), folder, watch), watch


def billed(*servers: Loopback) -> float:
    return sum(server.bill.usd for server in servers)


def test_each_agent_is_asked_at_its_own_provider(tmp_path: Path) -> None:
    with serving() as (claude, a), serving() as (served, b):
        run, _ = begin(tmp_path / "run", claude, served)
        assert (a.bill.requests, b.bill.requests) == (8, 8)
        assert billed(a, b) == pytest.approx(run.summary.cost_usd)
        assert min(a.bill.usd, b.bill.usd) > 0
        asked = {"anthropic": a.bill.usd, "fake": 0.0, "openai": b.bill.usd}
        assert run.summary.cost_by_provider == pytest.approx(asked)
        assert run.summary.calls_by_provider == {"anthropic": 8, "fake": 8, "openai": 8}
        more = resume(run.folder, {"episodes": 5})
        assert (a.bill.requests, b.bill.requests) == (10, 10)
        assert more.summary.calls_by_provider == {"anthropic": 10, "fake": 10, "openai": 10}
    assert [(row.agent, row.provider) for row in run.summary.usage] == [
        ("refactorer", "fake"),
        ("reviewer", "openai"),
        ("writer", "anthropic"),
    ]
    answers = [event for event in run.events if isinstance(event, Answered)]
    assert {(e.agent, e.key.partition("-")[0]) for e in answers if e.agent == "writer"} == {
        ("writer", place)
        for event in run.events
        if isinstance(event, Opened)
        for place, name in event.providers.items()
        if name == "anthropic"
    }
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["agents"] == {
        "writer": {"provider": "anthropic", "model": CLAUDE},
        "reviewer": {"provider": "openai", "model": SERVED},
    }
    assert not manifest["deterministic"]
    counted = more.summary.calls_by_provider
    (run.folder / "summary.json").unlink()  # what a report makes of the journal alone
    assert Salvaged(run.folder).summary.calls_by_provider == counted


def test_who_answered_is_shown(tmp_path: Path) -> None:
    """Before the run, at its end, in an evaluation and in a report."""
    with serving() as (claude, _), serving() as (served, b):
        plan = prepare(config(claude, served))
        run = run_plan(plan, tmp_path / "run", Noted())
        asked = b.bill.requests
        held_out = orchestry.evaluate(run, episodes=1, samples=3)
        assert b.bill.requests == asked + 3
    assert who(plan) == f"fake/fake-1, writer on anthropic/{CLAUDE}, reviewer on openai/{SERVED}"
    assert held_out.summary.calls_by_provider == {"anthropic": 3, "fake": 3, "openai": 3}
    screen = Console(width=200, record=True, file=StringIO())
    screen.print(figures(run.summary))
    assert "anthropic 8 calls $" in screen.export_text()
    (experiment,) = read_experiments([run.folder])
    found = setup(experiment) | costs(experiment)
    assert found["model of reviewer"] == f"openai/{SERVED}"
    assert (found["of them at anthropic"], found["of it at fake"]) == ("8", "0.0000 USD")


def test_a_dry_run_has_a_row_for_each_provider() -> None:
    nowhere = "http://127.0.0.1:1"
    found = estimate(config(nowhere, nowhere))
    rows = {(row.provider, row.model): row for row in found.by_provider}
    assert [*rows] == [("anthropic", CLAUDE), ("fake", "fake-1"), ("openai", SERVED)]
    assert [round(row.calls) for row in rows.values()] == [8, 8, 8]
    assert rows["fake", "fake-1"].usd == 0.0
    assert sum(row.usd for row in rows.values()) == pytest.approx(found.cost_usd.expected)
    paid = {row.agent: row.usd for row in found.usage}
    assert rows["anthropic", CLAUDE].usd == pytest.approx(paid["writer"])
    judge = "judge={enabled: true, when: always, provider: {name: openai, model: wise}}"
    judged = estimate(config(nowhere, nowhere, judge, "prices.wise={input: 1, output: 1}"))
    assert [(row.provider, row.model) for row in judged.by_provider][-1] == ("openai", "wise")


def test_a_run_of_several_providers_is_replayed_from_its_journal(tmp_path: Path) -> None:
    with serving() as (claude, _), serving() as (served, _):
        run, _ = begin(tmp_path / "run", claude, served)
    plain = read_config_file(run.folder / "config.yaml")
    recorded = {"name": "recorded", "recording": str(run.folder)}
    for part in (plain, *plain["agents"].values()):
        part["provider"] = recorded | {"model": part["provider"]["model"]}
    again = orchestry.train(validate(plain), tmp_path / "again")
    assert again.rewards == run.rewards
    assert [e.best for e in again.episodes] == [e.best for e in run.episodes]


def test_the_cap_is_over_all_providers(tmp_path: Path) -> None:
    with serving() as (claude, a), serving() as (served, b):
        run, _ = begin(tmp_path / "run", claude, served, "budget.usd=0.003")
        assert run.summary.stopped == "budget"
        assert billed(a, b) <= run.summary.cost_usd + 1e-9 <= 0.003 + 2e-9
        assert min(a.bill.usd, b.bill.usd) > 0
        done = resume(run.folder, {"budget": {"usd": 1.0}})
    assert done.summary.stopped == "done"
    assert billed(a, b) == pytest.approx(done.summary.cost_usd)
    assert (a.bill.requests, b.bill.requests) == (8, 8)


def test_faults_of_one_provider_are_its_own(tmp_path: Path) -> None:
    with serving(seed=1, overloaded=0.3, error_billed=0.2) as (claude, a), serving() as (served, b):
        run, _ = begin(tmp_path / "run", claude, served)
        assert billed(a, b) <= run.summary.cost_usd + 1e-9
        assert run.summary.lost_usd > 0
        assert b.bill.requests == run.summary.calls_by_provider["openai"]
        assert a.bill.requests > run.summary.calls_by_provider["anthropic"]
    assert (run.summary.stopped, run.summary.episodes) == ("done", 4)


def test_a_server_that_stays_away_stops_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    away = {"away_at": 3, "away_s": 60.0, "away_status": 529}
    with serving(**away) as (claude, a), serving() as (served, b):
        run, watch = begin(tmp_path / "run", claude, served, "retry.patience_s=0.5")
        assert run.summary.stopped == "away"
        assert any(note.startswith("anthropic away since") for note in watch.notes)
        a.heal()
        done = resume(run.folder)
    assert (done.summary.stopped, done.summary.episodes) == ("done", 4)
    assert b.bill.requests == 8  # none of them was asked again


def test_a_resume_takes_another_address_of_an_agent_and_no_other_provider(tmp_path: Path) -> None:
    with serving() as (claude, _), serving() as (served, b):
        run, _ = begin(tmp_path / "run", claude, served, "episodes=2")
    with serving() as (moved, c), serving() as (claude, _):
        agents = {"reviewer": {"provider": {"base_url": f"{moved}/v1"}}}
        agents["writer"] = {"provider": {"base_url": claude}}
        done = resume(run.folder, {"episodes": 3, "agents": agents})
        assert (b.bill.requests, c.bill.requests) == (4, 2)
    assert done.summary.calls_by_provider == {"anthropic": 6, "fake": 6, "openai": 6}
    with pytest.raises(ConfigError, match=r"agents.writer.provider.name can't be changed"):
        resume(run.folder, {"agents": {"writer": {"provider": {"name": "fake"}}}})


def test_an_address_of_an_agent_is_asked_about(tmp_path: Path) -> None:
    with serving() as (claude, _), serving() as (served, _):
        run, _ = begin(tmp_path / "run", claude, served, "episodes=2")
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().replace(claude, "http://elsewhere.example"))
    with pytest.raises(ConfigError, match=r"agents.writer.provider.base_url http://elsewhere"):
        resume(run.folder, {"episodes": 3})
    poet = {"role": "poet", "provider": {"base_url": "http://elsewhere.example"}}
    with pytest.raises(ConfigError, match=r"agents.poet.provider.base_url http://else"):
        of_run(run.folder, {"agents": [poet]})


def test_a_resume_adds_no_setting_that_nobody_gave(tmp_path: Path) -> None:
    """A recipe's config.yaml holds only what was given, after a resume too."""
    (tmp_path / "config.yaml").write_text(to_yaml(given := {"task": "tldr", "episodes": 4}))
    assert of_run(tmp_path).plain() == given


def test_agents_that_name_one_provider_share_it() -> None:
    """Its server is started once, and its breaker and places are one."""
    sets = [f"agents.{role}.provider=embedded" for role in ("writer", "reviewer")]
    plan = prepare(resolve([], ["task=words", f"task_path=[{TASKS}]", "provider.name=fake", *sets]))
    found = [plan.backend.answering(role).provider for role in CALLS]
    assert found[0] is found[1]
    assert found[2] is plan.backend.provider
    assert (
        plan.episodes_in_flight
        == prepare(
            resolve([], ["task=words", f"task_path=[{TASKS}]", "provider.name=fake"])
        ).episodes_in_flight
    )


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["agents.writer.provider=openai"], r"agents.writer.provider: .* no default model"),
        (["agents.writer.provider=nobody"], r"agents.writer.provider.name' is 'nobody'"),
        (
            ["agents.writer.provider=anthropic", "sampling.temperature=0.5"],
            r"Claude takes no temperature.*agents.ROLE.temperature",
        ),
        (
            ["agents.writer.provider={name: openai, model: unheard-of}"],
            "agents.writer.provider: .*unheard-of.*prices",
        ),
        (
            ["agents.writer.provider=embedded", "baseline=fixed"],
            r"more than one provider \(embedded, fake\)",
        ),
    ],
)
def test_what_no_run_can_be_made_of_is_an_error(sets: list[str], said: str) -> None:
    base = ["task=words", f"task_path=[{TASKS}]", "provider.name=fake"]
    with pytest.raises(ConfigError, match=said):
        prepare(resolve([], [*base, *sets]))


def test_a_missing_key_names_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    base = ["task=words", f"task_path=[{TASKS}]", "provider.name=fake"]
    asked = resolve([], [*base, "agents.writer.provider=anthropic"])
    with pytest.raises(ConfigError, match=r"agents.writer.provider: ANTHROPIC_API_KEY is not set"):
        prepare(asked)
    found = estimate(asked)  # which needs no key
    assert found.cost_usd.expected > 0
    assert {row.agent for row in found.usage if row.usd} == {"writer"}


def test_where_all_agents_have_a_provider_the_run_is_called_by_the_first() -> None:
    sets = [f"agents.{role}.provider=fake" for role in CALLS]
    plan = prepare(resolve([], ["task=words", f"task_path=[{TASKS}]", *sets]))
    assert plan.backend.provider.name == plan.config.provider.name == "fake"


@pytest.mark.slow
def test_an_embedded_reviewer_beside_a_scripted_team(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    base: list[Any] = ["task=words", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=1"]
    sets = ["agents.reviewer.provider=embedded", "agents.reviewer.max_tokens=4"]
    small = ["search.k_samples=2", "search.beam_width=1", "cache.enabled=false"]
    run = orchestry.train(resolve([], [*base, *sets, *small]), tmp_path / "run")
    assert run.summary.calls_by_provider == {"embedded": 2, "fake": 4}
    assert run.summary.cost_usd == 0.0
    models = {
        turn.agent: turn.completion.model for node in run.episodes[0].nodes for turn in node.turns
    }
    assert models["writer"] == models["refactorer"] == "fake-1"
    assert models["reviewer"] == prepare(run_config(run)).config.agents["reviewer"].model


def run_config(run: Run) -> RunConfig:
    return validate(read_config_file(run.folder / "config.yaml"))
