"""Other people's code and servers that a config names. The user is asked before the code is
imported or anything is sent; also about variables of the environment that are sent, a cap above the
default and a price below the known one.

Nothing is asked about places that today's command line or environment names, ./tasks (except in a
run directory), bundled tasks, this machine, vendors, and places that this user named or confirmed
before (kept in the user's state folder). The config's own origin does not count, so that nothing in
a foreign folder can vouch for itself.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestry.core.asked import variables
from orchestry.core.config import BudgetConfig, ProviderConfig, RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.files import is_player
from orchestry.core.resolve import Mark, leaves, listed, marks, merge
from orchestry.models import anthropic, openai
from orchestry.models.names import ollama
from orchestry.models.prices import FREE, undercuts
from orchestry.store.run import read_config
from orchestry.task.registry import bundled

Trust = bool | Callable[[str], bool]
"""Whether other people's places are used: yes, no, or a function that asks the user this
question."""
_ADDRESS = "provider.base_url"
_SERVERS = "learn.vllm_url"
VENDORS = (anthropic.VENDOR_URL, openai.VENDOR_URL)
VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL"}


@dataclass(frozen=True, slots=True)
class Place:
    """Something outside the config that it names."""

    kind: str
    """`code`, `inside` (code that a run directory holds), `server`, `variable` (whose value is
    sent), `wandb`, `unsafe`, `cap` or `price`."""
    value: str
    shown: str
    """Its key and value, and its effect, for a message."""
    model: str = ""
    """The model whose price it is."""


def of_run(
    place: Path,
    today: Mapping[str, Any] | None = None,
    trust: Trust = False,
    note: Callable[[str], None] = lambda text: None,
    environ: Mapping[str, str] = os.environ,
) -> RunConfig:
    """The config of a run directory, for use today.

    `today` has the keys that the user gives, nested like the config. Other addresses come from
    today's environment, and missing task folders are dropped; `note` is told of both. Raises
    ConfigError as `check_trust` does.
    """
    today = today or {}
    config = validate(merge(read_config(place), today))
    gone = {path for path in config.task_path if not path.is_dir()}
    if gone and "task_path" not in today:
        note(f"{', '.join(map(str, sorted(gone)))} is gone: --task-path says where its tasks are")
        kept = tuple(path for path in config.task_path if path not in gone)
        config = config.model_copy(update={"task_path": kept})
    config = _with_players(config, place, note)
    config = _where_today(config, today, environ, note)
    check_trust(config, place, trust, today, environ)
    return config


def _with_players(config: RunConfig, place: Path, note: Callable[[str], None]) -> RunConfig:
    """The config with the opponents where they are now: a run that came back from a host has them
    in its own folder (`ext.remote.runs.stage`)."""

    def found(name: str) -> str:
        _, sent, rest = name.rpartition("/remote/sent/")
        here = (place / "remote" / "sent" / rest).resolve()
        if not sent or is_player(Path(name)) or not is_player(here):
            return name
        note(f"{name} is gone: {here} plays")
        return str(here)

    agents = {
        role: own.model_copy(update={"plays": tuple(map(found, own.plays))}) if own.plays else own
        for role, own in config.agents.items()
    }
    return config.model_copy(update={"agents": agents}) if agents else config


def _where_today(
    config: RunConfig,
    today: Mapping[str, Any],
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> RunConfig:
    """The config with the addresses of today's environment, except those that `today` gives."""
    agents, changes = dict(config.agents), dict[str, Any]()
    for section, part in (("judge", config.judge), ("behaviors", config.behaviors)):
        if part.provider is not None and _at(today, f"{section}.{_ADDRESS}") is None:
            asked = _readdressed(part.provider, environ, note)
            changes[section] = part.model_copy(update={"provider": asked})
    for role, own in config.agents.items():
        typed = _agents(today).get(role)
        if own.provider is not None and _at(typed, _ADDRESS) is None:
            asked = _readdressed(own.provider, environ, note)
            agents[role] = own.model_copy(update={"provider": asked})
    changes["agents"] = agents
    if _at(today, _ADDRESS) is None:
        changes["provider"] = _readdressed(config.provider, environ, note)
    new = {key: value for key, value in changes.items() if value != getattr(config, key)}
    return config.model_copy(update=new)  # what stays as it was does not count as given


def _readdressed(
    asked: ProviderConfig, environ: Mapping[str, str], note: Callable[[str], None]
) -> ProviderConfig:
    """With the address in today's environment, if there is one."""
    variable = VARIABLES.get(asked.name, "")
    url = environ.get(variable, "").strip().rstrip("/")
    if not url or asked.base_url in (url, ollama(environ)):
        return asked
    was = asked.base_url or "the vendor's own"
    note(f"asking at the address in {variable}; so far the run asked at {was}")
    return asked.model_copy(update={"base_url": None})


def check_trust(
    config: RunConfig,
    where: Path,
    trust: Trust = False,
    typed: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Raises ConfigError if the config in `where` names other people's places and the user does not
    confirm them; confirmed ones are remembered.

    `typed` has the keys that the user gave today, nested like the config.
    """
    mine = {(place.kind, place.value) for place in _places(typed or {}, where)}
    strange = [place for place in _foreign(config, where, environ) if _id(place) not in mine]
    _ask(strange, where, trust, environ)


def check_server(
    shown: str, url: str, where: Path, trust: Trust, environ: Mapping[str, str] = os.environ
) -> None:
    """The same for an address that no run's config has. `shown`: its key, and its effect."""
    place = Place("server", _origin(url), shown)
    if not _own(place, environ) and _line(place) not in _remembered(environ):
        _ask([place], where, trust, environ)


def _ask(strange: list[Place], where: Path, trust: Trust, environ: Mapping[str, str]) -> None:
    """Raises ConfigError if there are places that the user does not confirm."""
    if not strange:
        return
    named = f"{where} names {'; '.join(place.shown for place in strange)}"
    if not (trust(f"{named}. Do you trust it?") if callable(trust) else trust):
        raise ConfigError(
            f"{named}: you never used that on this machine. If you trust it, pass --trust "
            "(from Python trust=True); your answer is remembered"
        )
    _remember(strange, environ)


def remember(config: RunConfig, where: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Remembers the places of a config that the user runs, for its resumes."""
    known, there = _remembered(environ), _all(config, where, environ)
    # ./tasks belongs to this folder only, and a resume may start in another.
    kept = [p for p in there if (p.kind == "code" and not _ships(p)) or not _own(p, environ)]
    _remember([place for place in kept if _line(place) not in known], environ)


def _foreign(config: RunConfig, where: Path, environ: Mapping[str, str]) -> list[Place]:
    known, there = _remembered(environ), _all(config, where, environ)
    return [place for place in there if not _own(place, environ) and _line(place) not in known]


def _all(config: RunConfig, where: Path, environ: Mapping[str, str]) -> list[Place]:
    named = [
        place
        for place in _places(config.model_dump(mode="json", by_alias=True), where)
        if place.kind not in ("cap", "price") or _spends(place, config, environ)
    ]
    folder, here = where if where.is_dir() else where.parent, _tasks_here()
    # ./tasks is the user's own, except inside a run directory, which may be someone else's.
    held = here.is_dir() and here.is_relative_to(folder.resolve())
    if held and (folder / "journal.jsonl").exists():
        named.append(Place("inside", str(here), f"{here} (its code would be imported)"))
    return named


def _tasks_here() -> Path:
    return (Path.cwd() / "tasks").resolve()


def _spends(place: Place, config: RunConfig, environ: Mapping[str, str]) -> bool:
    """Caps above the default and prices below the known ones, for servers that bill."""
    cap, default = config.budget.usd, BudgetConfig().usd
    own = [agent.provider for agent in config.agents.values()]
    others = (config.judge.provider, config.behaviors.provider, *own)
    for asked in (config.provider, *filter(None, others)):
        variable = VARIABLES.get(asked.name, "")
        url = asked.base_url or environ.get(variable, "").strip()
        if asked.name in FREE or _is_here(url):
            continue
        if place.kind == "price":
            if undercuts(asked.name, url, place.model, config.prices[place.model]):
                return True
        elif cap is None or (default is not None and cap > default):
            return True
    return False


def _places(raw: Mapping[str, Any], where: Path) -> Iterator[Place]:
    if where.name == "config.yaml" and (where.parent / "journal.jsonl").exists():
        where = where.parent  # a run's own config names what the run does
    whose = where.resolve()
    for path in raw.get("task_path") or ():
        code = str(Path(path).resolve())
        yield Place("code", code, f"task_path {path} (its code would be imported)")
    for key, url in _addresses(raw):
        if key == "executor" and "//" not in str(url):  # this machine, or the cluster it is part of
            continue
        if url and Mark.ADDRESS in marks(RunConfig, key):
            sent = "prompts, and a key where it wants one, would be sent there"
            far = "commands would run there, and it could run code here"
            shown = f"{key} {url} ({far if key == 'executor' else sent})"
            yield Place("server", _origin(str(url)), shown)
    yield from _variables(raw)
    for own in ((raw.get("recipe") or {}).get("stages") or {}).values():
        yield from _places(own, where)
    trackers = raw.get("trackers") or {}
    if trackers.get("wandb") == "online" and (entity := trackers.get("entity")):
        yield Place("wandb", entity, f"trackers.entity {entity} (W&B would be sent the figures)")
    if raw.get("allow_unsafe_code"):
        shown = "allow_unsafe_code (code of models would run unconfined where nothing confines it)"
        yield Place("unsafe", str(whose), shown)
    budget = raw.get("budget") or {}
    if "usd" in budget:
        usd = budget["usd"] if budget["usd"] is None else float(budget["usd"])  # 10 is 10.0
        yield Place("cap", f"{whose} {usd}", f"budget.usd {usd} (so much might be spent)")
    for model in raw.get("prices") or {}:
        shown = f"prices.{model} below the known ones (more would be spent than budget.usd says)"
        yield Place("price", f"{whose} {model}", shown, model)


def _addresses(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves, with each server of a list by itself. The part of a recipe, and what was typed, may
    still have them in one text."""
    for key, value in leaves(raw):
        found = listed(value) if key == _SERVERS else value
        yield from ((key, one) for one in (found if isinstance(found, list | tuple) else [found]))


def _variables(raw: Mapping[str, Any]) -> Iterator[Place]:
    """Variables of the environment that headers take, each with the address that gets them."""
    asked = {f"{key}provider": _at(raw, f"{key}provider") for key in ("", "judge.", "behaviors.")}
    asked |= {f"agents.{role}.provider": _at(own, "provider") for role, own in _agents(raw).items()}
    for key, one in asked.items():
        url, headers = _at(one, "base_url") or "", _at(one, "headers")
        texts = map(str, headers.values()) if isinstance(headers, Mapping) else ()
        for name in variables(" ".join(texts)):
            sent = f"its value would be sent to {url or 'the provider'}"
            shown = f"{key}.headers ${{{name}}} ({sent})"
            yield Place("variable", f"{name} {_origin(url)}", shown)


def _agents(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """By role. For a list there is no earlier value, so all its addresses are asked about."""
    found = raw.get("agents")
    return found if isinstance(found, Mapping) else {}


def _at(raw: Any, dotted: str) -> Any:
    value: Any = raw
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _own(place: Place, environ: Mapping[str, str]) -> bool:
    if place.kind == "code":
        return _ships(place) or Path(place.value).is_relative_to(_tasks_here())
    if place.kind != "server":
        return False
    named = (environ.get(name, "").strip() for name in VARIABLES.values())
    known = {_origin(url) for url in (*VENDORS, *named) if url}
    return place.value in known or _is_here(place.value)


def _ships(place: Place) -> bool:
    return Path(place.value).is_relative_to(bundled("tasks").resolve())


def _origin(url: str) -> str:
    """Scheme, host and port; the path does not matter."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # an invalid address is refused when it is opened
    return f"{parts.scheme}://{parts.netloc}".lower()


def _is_here(origin: str) -> bool:
    """Whether a server is on this machine."""
    host = ""
    try:
        host = urlsplit(origin).hostname or ""
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- what is remembered -------------------------------------------------------------------------


def _file(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    root = environ.get("XDG_STATE_HOME") or home / ".local" / "state"
    return Path(root) / "orchestry" / "places"


def _id(place: Place) -> tuple[str, str]:
    return place.kind, place.value


def _line(place: Place) -> str:
    return f"{place.kind} {place.value!a}"


def _remembered(environ: Mapping[str, str]) -> set[str]:
    try:
        return set(_file(environ).read_text(encoding="utf-8").splitlines())
    except OSError:
        return set()


def _remember(places: list[Place], environ: Mapping[str, str]) -> None:
    """If the disk refuses, the next command asks again."""
    if not places:
        return
    path = _file(environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{_line(place)}\n" for place in places))
    except OSError:
        return
