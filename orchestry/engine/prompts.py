"""Exports the team of an api run: its prompts and examples with what was learned, as a config, as
Python data and as a page to read."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.library import Behavior, Library
from orchestry.backends.local.card import fenced
from orchestry.core.config import AgentConfig, ProviderConfig, RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.files import to_yaml
from orchestry.core.types import Member
from orchestry.engine.export import held_out, new_export
from orchestry.engine.run import prepare
from orchestry.engine.trust import VENDORS, Trust, of_run
from orchestry.store.checkpoints import Which, chosen_update
from orchestry.store.run import load_run


@dataclass(frozen=True, slots=True)
class Prompts:
    """What was written, and from which run."""

    folder: Path
    run: str
    """The run directory's name."""
    config: RunConfig
    update: int
    """0: the team as the run began."""
    team: Mapping[str, Member]
    accepted: tuple[Behavior, ...]
    """The behaviours in its prompts."""
    rewards: Mapping[str, float]
    """Mean reward of evaluations after this update, by split."""

    def asked(self, role: str) -> ProviderConfig:
        """Who answered for an agent in the run."""
        return self.config.agents.get(role, AgentConfig()).provider or self.config.provider


def export_prompts(
    run: str | Path,
    folder: Path | None = None,
    *,
    update: Which = None,
    note: Callable[[str], None] = lambda text: None,
    task_path: Sequence[Path] = (),
    trust: Trust = False,
) -> Prompts:
    """Writes team.yaml, team.py and README.md into a new or empty folder (default:
    `RUN/export/update-N`).

    `update`: its number (0: as the run began) or `best`; None: the last. Raises ConfigError for a
    run that learns weights or that names untrusted code, and StoreError if the folder can't be
    written; then no file is left.
    """
    source = load_run(run)
    today = {"task_path": [str(path) for path in task_path]} if task_path else {}
    config = of_run(source.folder, today, trust, note)
    learned = chosen_update(source, update)
    number = learned.update if learned else 0
    plan = prepare(config, note, need_key=False, folder=source.folder)
    if not isinstance(plan.backend, ApiBackend):
        raise ConfigError(
            f"{source.folder} is a run of backend {config.backend}, which learns weights: `export` "
            "writes them"
        )
    library = plan.backend.library
    if learned is not None:
        library = Library.model_validate(learned.state["library"])
    team = plan.backend.team(plan.task, library)
    found = Prompts(
        folder=folder or source.folder / "export" / f"update-{number}",
        run=source.folder.absolute().name,
        config=plan.config,
        update=number,
        team=team,
        accepted=tuple(one for role in team for one in library.accepted(role)),
        rewards=held_out(source, number),
    )
    with new_export(found.folder) as part:
        for name, text in _files(found).items():
            (part / name).write_text(text, encoding="utf-8")
    return found


def _files(found: Prompts) -> dict[str, str]:
    return {"README.md": _readme(found), "team.yaml": _config(found), "team.py": _python(found)}


def _config(found: Prompts) -> str:
    """The team as a config file: the task, and each agent's own settings with its prompt."""
    agents = {role: _settings(found.config, member) for role, member in found.team.items()}
    listed = [{"role": role, **own} for role, own in agents.items()]
    team = listed if found.config.team else agents
    head = f"# {_origin(found)}.\n# `orchestry run --config THIS_FILE` plays this team.\n"
    return head + to_yaml({"task": found.config.task, "agents": team})


def _settings(config: RunConfig, member: Member) -> dict[str, Any]:
    own = config.agents.get(member.role, AgentConfig())
    kept = own.model_dump(mode="json", exclude_defaults=True, exclude={"role"})
    return {**kept, **_said(member)}


def _said(member: Member) -> dict[str, Any]:
    examples = [one.model_dump() for one in member.examples]
    return {"system_prompt": member.system_prompt, "examples": examples}


def _python(found: Prompts) -> str:
    """The team as a dict, and the function that makes an agent's chat."""
    team = {
        role: {
            "model": member.model,
            "max_tokens": member.max_tokens,
            "temperature": member.temperature,
            "stop": list(member.stop),
            **({"tools": [one.function for one in member.tools]} if member.tools else {}),
            **_said(member),
        }
        for role, member in found.team.items()
    }
    return _MODULE.format(origin=_origin(found), team=pprint.pformat(team, sort_dicts=False))


_MODULE = '''\
"""{origin}."""

TEAM = {team}


def messages(role, observation):
    """The chat that asks an agent: its system prompt, its examples, then what it sees."""
    agent = TEAM[role]
    chat = []
    if agent["system_prompt"]:
        chat.append({{"role": "system", "content": agent["system_prompt"]}})
    for example in agent["examples"]:
        chat.append({{"role": "user", "content": example["asked"]}})
        chat.append({{"role": "assistant", "content": example["answered"]}})
    return [*chat, {{"role": "user", "content": observation}}]
'''


def _origin(found: Prompts) -> str:
    when = f"after update {found.update}" if found.update else "before its first update"
    return f"The team of task {found.config.task}, as run {found.run} has it {when}"


# --- the page -----------------------------------------------------------------------------------


def _readme(found: Prompts) -> str:
    by_server = dict[tuple[str, str], Member]()  # the first agent that each answers
    for role, one in found.team.items():
        by_server.setdefault((found.asked(role).name, _where(found.asked(role))), one)
    asked = by_server.values()
    models = dict.fromkeys(f"{found.asked(r).name}/{one.model}" for r, one in found.team.items())
    again = f"orchestry run --task {found.config.task} --config team.yaml"
    parts = [
        f"# {', '.join(found.team)}: the team of task {found.config.task}",
        f"{_origin(found)}. Who answered: {', '.join(models)}.",
        "## How to use it",
        *(fenced(_usage(found, one), "python") for one in asked),
        "Run it in this folder. `TEAM` has each agent's prompt, examples and settings; `messages` "
        f"makes the chat. {''.join(_server(found, one) for one in asked)}In Orchestry, this plays "
        "the team, and goes on learning from there:",
        fenced(again, "sh"),
        "## What was learned",
        _learned(found),
        *(text for member in found.team.values() for text in _agent(member)),
    ]
    return "\n\n".join(parts) + "\n"


def _usage(found: Prompts, member: Member) -> str:
    """The code that asks an agent, by the client of its own vendor."""
    claude = found.asked(member.role).name == "anthropic"
    prompt = ("system, *", 'system=system["content"], ') if member.system_prompt else ("", "")
    asked = found.asked(member.role)
    extra = {name: value for name, value in asked.extra_body.items() if value is not None}
    own = {
        "system": prompt[0],
        "given": prompt[1],
        "extra": f", extra_body={extra}" if extra else "",
        "client": ", ".join(filter(None, (_where(asked), _headers(asked)))),
        "imports": "from os.path import expandvars\n" if asked.headers else "",
    }
    return (_ASK_CLAUDE if claude else _ASK).format(role=member.role, **own)


def _where(asked: ProviderConfig) -> str:
    """The client's argument for a server that is not the vendor's own."""
    if asked.base_url in (None, *VENDORS) or asked.name not in ("anthropic", "openai"):
        return ""
    return f'base_url="{asked.base_url}"'


def _headers(asked: ProviderConfig) -> str:
    """The client's argument; keys stay in the environment."""
    said = ", ".join(f"{name!r}: expandvars({value!r})" for name, value in asked.headers.items())
    return f"default_headers={{{said}}}" if said else ""


def _server(found: Prompts, member: Member) -> str:
    """Where the model is to be asked, if no vendor has it."""
    asked = found.asked(member.role)
    if asked.name == "openai" and _where(asked):
        return "`OpenAI` wants a key in OPENAI_API_KEY, also for a server that needs none. "
    if asked.name in ("anthropic", "openai"):
        return ""
    return (
        f"No vendor has {member.model}: give `OpenAI(base_url=...)` the address of a server that "
        "does, on this machine or elsewhere. "
    )


_ASK = """\
{imports}from openai import OpenAI
from team import TEAM, messages
chat = {{"model": TEAM["{role}"]["model"], "messages": messages("{role}", "...")}}
print(OpenAI({client}).chat.completions.create(**chat{extra}).choices[0].message.content)
"""
_ASK_CLAUDE = """\
{imports}from anthropic import Anthropic
from team import TEAM, messages
{system}chat = messages("{role}", "...")
how = {{"model": TEAM["{role}"]["model"], "max_tokens": TEAM["{role}"]["max_tokens"]}}
print(Anthropic({client}).messages.create(**how, {given}messages=chat{extra}).content[-1].text)
"""


def _learned(found: Prompts) -> str:
    """The behaviours with their evidence, and the rewards of evaluations."""
    lines = [
        f"- {one.agent}, {one.kind} `{one.id}`: {_evidence(one)}" for one in found.accepted
    ] or ["Nothing was accepted: these are the prompts that the run began with."]
    rewards = [f"- mean reward on {split}: {x:.3f}" for split, x in found.rewards.items()]
    return "\n".join([*lines, *(["", *rewards] if rewards else [])])


def _evidence(one: Behavior) -> str:
    """What accepted it, then its last test since."""
    again = f"; again: {one.retest}" if one.retest else ""
    return f"{one.evidence or 'not tried'}{again}"


def _agent(member: Member) -> list[str]:
    temperature = "the provider's own" if member.temperature is None else member.temperature
    how = f"Model {member.model}, at most {member.max_tokens} tokens, temperature: {temperature}."
    prompt = fenced(member.system_prompt, "text") if member.system_prompt else "None."
    found = [f"## {member.role}", how, "System prompt:", prompt]
    for example in member.examples:
        found += ["Example: asked", fenced(example.asked, "text")]
        found += ["answered", fenced(example.answered, "text")]
    return found
