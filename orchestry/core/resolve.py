"""A config's raw data: its layers merged, the marks of its keys, error messages, and secrets.

Pydantic's messages name Python types; ours name keys, numbers and lists, as in YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestry.core.errors import ConfigError, unknown
from orchestry.core.files import parse_yaml, read_yaml
from orchestry.core.secrets import keys_in_query, looks_like_key


def settings_of(sets: Sequence[str]) -> dict[str, Any]:
    """`a.b=c` settings, nested as in a file; if a key is repeated, the last one counts."""
    found: dict[str, Any] = {}
    for item in sets:
        key, value = _parse_set(item)
        put_key(found, key, value)
    return found


def read_config_file(path: Path) -> dict[str, Any]:
    """Reads a YAML mapping; raises ConfigError for anything else."""
    try:
        return read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"config file {path} does not exist: check --config") from None
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"config file {path} can't be read: {why}: correct it") from None


def _parse_set(item: str) -> tuple[str, Any]:
    key, sep, value = item.partition("=")
    if quoted := _QUOTED_KEY.match(item):
        key, value = quoted.groups()
    if not sep or not key:
        raise ConfigError(f"--set takes key=value such as search.k_samples=8, not '{item}'")
    try:
        return key, parse_yaml(value)
    except ValueError as error:
        why = f"--set {key}: '{value}' is not a YAML value ({error}): quote it"
        raise ConfigError(why) from None


_QUOTED_KEY = re.compile(r'((?:[^="]|"[^"]*")+)=(.*)', re.DOTALL)
_NAME = re.compile(r'(?:^|\.)(?:"([^"]+)"|([^.]*))')


def put_key(target: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a dotted key in nested data. A name with dots is quoted: agents."a.b".model. Raises
    ConfigError if a part of the key is already a plain value."""
    *path, last = [quoted or bare for quoted, bare in _NAME.findall(dotted)]
    for name in path:
        inner = target.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"'{dotted}' goes below '{name}', which is already a plain value")
        target = inner
    target[last] = value


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A new mapping: `base` overridden by `extra`, recursively."""
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def by_role(raw: Any) -> Any:
    """A config's raw data in a form that can be merged: a list of agents becomes a mapping (each
    entry keeps its role), and an agent's provider a mapping."""
    agents = raw.get("agents") if isinstance(raw, Mapping) else None
    if isinstance(agents, list | tuple):
        agents = _named(agents)
    if not isinstance(agents, Mapping):
        return raw
    return {**raw, "agents": {role: _agent(role, own) for role, own in agents.items()}}


def _agent(name: str, own: Any) -> Any:
    if not isinstance(own, Mapping):
        return own
    if (role := own.get("role")) not in (None, name):
        raise ConfigError(
            f"config key 'agents.{name}.role' is '{role}': leave it out, or make agents a list "
            f"such as [{{role: {role}}}]"
        )
    return {**own, "provider": with_keys(own["provider"])} if "provider" in own else own


def _named(agents: Sequence[Any]) -> dict[str, Any]:
    """Raises ConfigError for no entry, an entry without a role, or a repeated role."""
    found = dict[str, Any]()
    if not agents:
        raise ConfigError(
            "config key 'agents' is an empty list: name each agent of the team, such as "
            "[{role: coder}], or leave out agents for the task's own team"
        )
    for place, own in enumerate(agents):
        role = own.get("role") if isinstance(own, Mapping) else None
        if not role or not isinstance(role, str):
            raise ConfigError(
                f"config key 'agents.{place}' has no role: give each agent of the list one, such "
                "as {role: coder}"
            )
        if role in found:
            raise ConfigError(f"config key 'agents' has two agents of role '{role}': rename one")
        found[role] = own
    return found


def with_keys(raw: Any) -> Any:
    """A provider's keys, where only its name is given."""
    return {"name": raw} if isinstance(raw, str) else raw


def unless_auto(raw: Any) -> Any:
    """None for the word `auto`."""
    return None if raw == "auto" else raw


def listed(given: Any) -> Any:
    """The parts of a text between commas, which is how `--set` gives a list; else what was given.

    >>> listed("qkv_proj, o_proj")
    ['qkv_proj', 'o_proj']
    """
    return [part.strip() for part in given.split(",")] if isinstance(given, str) else given


class Mark(Enum):
    """A property of a config key or section, written `Annotated[..., Mark.X]`."""

    RESUMABLE = "a resume may change it: nothing played or learned so far depends on it"
    MOVABLE = "a path that may move: the run has a copy, or identifies its target by content"
    MEASURED = "it decides what an evaluation measures"
    OPERATIONAL = "how, where and at what cost the run is executed: no result depends on it"
    ADDRESS = "an address: one with a user, password or query is refused"


@cache
def marks(root: type[BaseModel], key: str) -> frozenset[Mark]:
    """The marks of a dotted key: its own, and those of its sections."""
    found, model = set[Mark](), root
    for name in key.split("."):
        field = _fields(model).get(name)
        if field is None:  # a name that the user chose: agents.<role>, prices.<model>
            continue
        found |= _own(field)
        inner = _model_in(field.annotation)
        if inner is None:
            break
        model = inner
    return frozenset(found)


def marked(root: type[BaseModel], mark: Mark, above: str = "") -> Iterator[str]:
    """The dotted keys and whole sections with that mark; NAME stands for a name that the user
    chose."""
    for name, field in _fields(root).items():
        inner = _model_in(field.annotation)
        if mark in _own(field):
            yield f"{above}{name}"
        elif inner is not None:
            named = "" if inner in (field.annotation, *_optional(field.annotation)) else ".NAME"
            yield from marked(inner, mark, f"{above}{name}{named}.")


def leaves(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; an empty section gives none.

    >>> dict(leaves({"learn": {"every": 4}, "seed": 0, "weights": {}}))
    {'learn.every': 4, 'seed': 0}
    """
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """By the names that a file has."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _own(field: FieldInfo) -> set[Mark]:
    return {item for item in field.metadata if isinstance(item, Mark)}


def refuse_secrets(value: Any, root: type[BaseModel], key: str = "") -> None:
    """Raises ConfigError for plain data that holds an API key, or a password in an address."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            refuse_secrets(str(name), root, key)
            refuse_secrets(inner, root, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            refuse_secrets(inner, root, key)
    elif isinstance(value, str) and looks_like_key(value):
        fix = "ANTHROPIC_API_KEY or OPENAI_API_KEY instead"
        if ".headers." in key:
            fix = "it, such as in MY_KEY, and write ${MY_KEY} here"
        raise ConfigError(
            f"config key '{key}' holds what looks like an API key: no config key takes one; "
            f"export {fix}"
        )
    elif isinstance(value, str) and Mark.ADDRESS in marks(root, key) and _secret_in(value, key):
        whole = " (all of it may stand in OPENAI_BASE_URL)" if key.endswith(_OF_VENDORS) else ""
        raise ConfigError(
            f"config key '{key}' has a user, password or query, which would be written to disk: "
            f"give the bare address{whole}"
        )


def _secret_in(address: str, key: str) -> bool:
    """Whether an address may hold a secret; a vendor's may name a version in its query."""
    if "@" in address or not key.endswith(_OF_VENDORS):
        return bool(set("@?") & set(address))
    try:
        return bool(keys_in_query(address))
    except ValueError:  # no address, which is said where it is opened
        return False


_OF_VENDORS = "base_url"
_HOLDS_KEYS = ("model_type", "model_attributes_type", "dict_type", "mapping_type")
_FIXES = {
    "finite_number": "give a finite number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a smaller number",
    "int_from_float": "give a whole number",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "literal_error": "give {expected}",
    "string_type": "give a text, in quotes where it looks like a number",
    "string_too_long": "give at most {max_length} characters",
    "string_too_short": "give a text",
    "tuple_type": "give a list, such as [a, b]",
    "too_short": "give a list with at least {min_length} item",
    "path_type": "give a path",
}
"""By pydantic's type of error."""
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_LONGEST = 80
"""A message quotes at most this many characters of the value."""


def explain_fault(fault: Mapping[str, Any], root: type[BaseModel]) -> str:
    """One pydantic error of a `root` model, in one line."""
    path = [str(part) for part in fault["loc"]]
    key, kind, context = ".".join(path), fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown("config key", key, _keys_beside(root, path))
    if kind == "missing":
        return f"config key '{key}' is missing: give it too"
    if not path and kind in _HOLDS_KEYS:
        return "the config is no mapping: give keys with values, such as {task: tldr}"
    if kind in _HOLDS_KEYS:
        fix = f"it holds keys, such as {_inside(root, path)}"
    elif _BOUNDS.keys() & context.keys():
        fix = f"give a number {_bounds(root, path, context)}"
    elif kind in _FIXES:
        fix = _FIXES[kind].format(**context)
    else:
        fix = fault["msg"].removeprefix("Value error, ")
    found = repr(fault["input"])
    found = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
    return f"config key '{key}' is {found}: {fix}"


def _bounds(root: type[BaseModel], path: Sequence[str], context: Mapping[str, Any]) -> str:
    """All bounds of the field, if it has any itself; else the one that was violated."""
    field = _field(root, path)
    limits = {
        name: getattr(item, name)
        for item in (field.metadata if field else ())
        for name in _BOUNDS
        if hasattr(item, name)
    }
    named = (limits or context).items()
    return " and ".join(f"{_BOUNDS[name]} {limit:.15g}" for name, limit in named if name in _BOUNDS)


def _field(root: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """The field at that path; None for an entry of a mapping or list."""
    model: type[BaseModel] | None = root
    for name in path[:-1]:
        if model is not None and name in model.model_fields:
            model = _model_in(model.model_fields[name].annotation)
    return model.model_fields.get(path[-1]) if model is not None and path else None


def _keys_beside(root: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The known dotted keys beside an unknown one."""
    model, prefix = root, list[str]()
    for name in path[:-1]:
        prefix.append(name)
        if name not in model.model_fields:  # an entry of a mapping: agents.<role>, prices.<model>
            continue
        inner = _model_in(model.model_fields[name].annotation)
        if inner is None:
            return []
        model = inner
    return [".".join([*prefix, name]) for name in _fields(model)]


def _inside(root: type[BaseModel], path: Sequence[str]) -> str:
    """An example of a key below that path, with a value if it is plain: judge.enabled=true."""
    model: type[BaseModel] | None = root
    named = True
    for name in path:
        if model is None or name not in model.model_fields:
            named = True
            continue
        annotation = model.model_fields[name].annotation
        inner = _model_in(annotation)
        named = inner is not None and inner in (annotation, *_optional(annotation))
        model = inner
    prefix = ".".join([*path, *([] if named else ["NAME"])])
    if model is None:
        return f"{prefix}=VALUE"
    name, field = next(iter(model.model_fields.items()))
    return f"{prefix}.{field.alias or name}={_value(field)}"


def _optional(annotation: Any) -> tuple[Any, ...]:
    """The types of `X | None`; () for a mapping, whose keys the user chooses."""
    return get_args(annotation) if type(None) in get_args(annotation) else ()


def _value(field: FieldInfo) -> str:
    """An example value for the field, as YAML."""
    if bool in (field.annotation, *get_args(field.annotation)):
        return "true"
    plain = isinstance(field.default, str | int | float)
    return str(field.default) if plain else "VALUE"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model of a field, or of the values of its mapping."""
    candidates = (annotation, *get_args(annotation))
    return next(
        (c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)),
        None,
    )
