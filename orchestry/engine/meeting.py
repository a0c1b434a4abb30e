"""Language models of two runs in one game: each agent is asked as its own run asks it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestry.backends.local.weights import Team, team_of
from orchestry.core.config import AgentConfig, RunConfig
from orchestry.engine.plan import Plan

_DRAWN = ("learn.top_p", "learn.top_k", "learn.dtype", "learn.quantize")
_ON = ("learn.device", "learn.threads")
"""How answers are drawn from weights, and where."""
_ONCE = ("task", "task_path", "retry", "cache", "sandbox", "allow_unsafe_code")
"""Sections that a run of backend local shares with one of backend api."""


def apart(one: Plan, other: Plan) -> str:
    """Why two teams can't sit in one game; "" if they can."""
    configs = one.config, other.config
    if any(config.baseline for config in configs):
        return "a baseline plays with itself alone"
    weights = [plan for plan in (one, other) if _has_weights(plan.config)]
    for key in ("sampling.stop", *(_DRAWN if len(weights) == 2 else ())):
        section, _, name = key.partition(".")
        if len({getattr(getattr(config, section), name) for config in configs}) > 1:
            return f"{key} of the two runs differs, and a game has one"
    models = {member.model for plan in (one, other) for member in _team(plan).values()}
    for model in sorted(models):
        if one.config.prices.get(model) != other.config.prices.get(model):
            return f"prices.{model} of the two runs differs, and a game has one"
    return _weights_apart(weights)


def _weights_apart(plans: Sequence[Plan]) -> str:
    """Why trained weights can't play beside another run's models."""
    teams = list[Team]()
    for plan in plans:
        if plan.config.learn.method == "full":
            return "learn.method=full leaves no adapters, which alone play beside other models"
        if (source := _source(plan.config)) is None:
            return "weights that were never trained don't play beside another run's models"
        teams.append(team_of(source))
        if lacking := teams[-1].lacks([role for role in _team(plan) if _drawn(plan, role)]):
            return f"{source} has no adapter of {', '.join(lacking)}"
    sizes = [{**team.sizes, "shared": None} for team in teams]
    if any(size != sizes[0] for size in sizes):
        return "their adapters differ in size (learn.rank, alpha, targets or rslora)"
    return ""


def together(teams: Sequence[Plan], sits: Mapping[str, Plan], folder: Path) -> dict[str, Any]:
    """The config of a game, as plain data. `sits`: whose team each agent is of.

    What a game has once, such as the cache, is as in the first team whose models are asked
    elsewhere, else the first; the cap and the concurrency are the least of both. Adapters of the
    agents that have some are copied to `folder`.
    """
    configs = [plan.config for plan in teams]
    asked = [config for config in configs if not _has_weights(config)]
    base = (asked or configs)[0]
    found = base.plain() if asked else {"backend": "api", **_only(base.plain(), _ONCE)}
    if drawn := {role: plan for role, plan in sits.items() if _drawn(plan, role)}:
        learn = next(iter(drawn.values())).config.plain().get("learn", {})
        names = [key.removeprefix("learn.") for key in (*_DRAWN, *_ON)]
        weights = {"name": "local", "team": str(_gathered(drawn, folder))}
        found |= {"provider": weights, "learn": _only(learn, names)}
    caps = [config.budget.usd for config in configs if config.budget.usd is not None]
    concurrency = min(config.search.concurrency for config in configs)
    return {
        **found,
        "budget": {"usd": min(caps, default=None)},
        "search": {**found.get("search", {}), "concurrency": concurrency},
        "prices": {**configs[0].plain().get("prices", {}), **configs[1].plain().get("prices", {})},
        # Each agent has its own; None: that of an agent whose run has none, since models refuse it.
        "sampling": {"stop": list(base.sampling.stop), "temperature": None},
        "behaviors": {"enabled": False},  # agents bring along what was learned
        "agents": {role: _spelled_out(plan, role) for role, plan in sits.items()},
    }


def _spelled_out(plan: Plan, role: str) -> dict[str, Any]:
    """An agent as its own run asks it, with what it learned."""
    config, member = plan.config, _team(plan)[role]
    own = config.agents.get(role, AgentConfig())
    asked: dict[str, Any] = {}
    if not _drawn(plan, role):
        provider = own.provider or config.provider
        asked = {"provider": provider.model_dump(mode="json"), "model": own.model}
    return {
        **asked,
        "system_prompt": member.system_prompt,
        "examples": [example.model_dump() for example in member.examples],
        "max_tokens": member.max_tokens,
        "temperature": member.temperature,
        "infer": own.infer,
        "chain": own.chain,
    }


def _gathered(plans: Mapping[str, Plan], folder: Path) -> Path:
    """A folder with the adapter of each of these agents, from its own team."""
    shutil.rmtree(folder, ignore_errors=True)
    for role, plan in plans.items():
        source = _source(plan.config)
        assert source is not None, "apart has seen it"
        team_of(source).copy_agent(role, folder)
    return folder


def _team(plan: Plan) -> Mapping[str, Any]:
    return plan.backend.team(plan.task)


def _has_weights(config: RunConfig) -> bool:
    return "local" in (config.backend, config.provider.name)


def _drawn(plan: Plan, role: str) -> bool:
    """Whether trained weights answer for an agent."""
    return _has_weights(plan.config) and not plan.config.agents.get(role, AgentConfig()).provider


def _source(config: RunConfig) -> Path | None:
    """Where a team's adapters lie."""
    return config.learn.source if config.backend == "local" else config.provider.team


def _only(plain: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: plain[key] for key in keys if key in plain}
