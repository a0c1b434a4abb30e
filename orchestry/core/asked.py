"""Checks of the provider's settings that change what is sent: fields, their names, headers.

What a call may cost is reserved before it is sent, so no field may raise it. A key stands in the
environment, and the config names its variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestry.core.errors import ConfigError
from orchestry.core.extras import as_dict, others
from orchestry.core.secrets import named_secret

_LIMIT = re.compile(r"(max|min)\w*tokens|n(um)?_predict|\w*budget\w*", re.IGNORECASE)
"""Limits of the output. A budget of 0 tokens, which switches thinking off, raises nothing."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_SET_ELSEWHERE = {
    "model": "provider.model",
    "n": "search.k_samples",
    "stream": "nothing: it is set where it is needed",
    "tools": "the agent's tools",
    "messages": "the task, and agents.ROLE.system_prompt",
}
_PRICED = {
    *("models", "system", "prompt", "input", "best_of", "num_return_sequences", "candidate_count"),
    *("stream_options", "functions", "function_call", "tool_choice", "mcp_servers", "container"),
    *("plugins", "web_search_options", "service_tier", "speed", "inference_geo", "background"),
    *("cache_control", "modalities", "audio", "prediction", "extra_body"),
}
_SEARCHES = re.compile(r"\w*search\w*", re.IGNORECASE)
"""Fields that may raise a call's price; null leaves them out."""
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_extra_body(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises ValueError for a field that may raise what a call costs."""
    for name, value in extra.items():
        if name in _SET_ELSEWHERE:
            raise ValueError(f"leave {name} out: {_SET_ELSEWHERE[name]} says it")
        priced = name in _PRICED and value is not None
        if priced or (_SEARCHES.fullmatch(name) and value):
            raise ValueError(
                f"leave {name} out: it may raise a call's price above what is reserved"
            )
    thinking = as_dict(extra.get("thinking"))
    inside = {"thinking": others(thinking, "budget_tokens")} if thinking_budget(extra) else {}
    for name, value in _fields({**extra, **inside}):
        if _LIMIT.fullmatch(name) and not ("budget" in name.lower() and not value):
            raise ValueError(
                f"leave {name} out: sampling.max_tokens, judge.max_tokens and "
                "agents.ROLE.max_tokens limit an answer, and are what is reserved"
            )
    return extra


def thinking_budget(extra: Mapping[str, Any]) -> int:
    """Tokens that Claude may think, which are part of an answer's limit; 0 if none are named."""
    named = as_dict(extra.get("thinking")).get("budget_tokens")
    return named if isinstance(named, int) and named > 0 else 0


def check_rename(rename: Mapping[str, str]) -> Mapping[str, str]:
    """Raises ValueError for a name by which a field would mean another thing."""
    for old, new in rename.items():
        if old == "model":  # a server that reads none chooses one, at a price of its own
            raise ValueError("leave model out: its price is what is reserved")
        limits = old in _LIMITS
        if limits != (_LIMIT.fullmatch(new) is not None) or new in _PRICED or new in _SET_ELSEWHERE:
            fits = f"give one such as {_LIMITS[1]}" if limits else "give the server's own name"
            raise ValueError(f"{new} is no name for {old}: {fits}")
    return rename


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raises ConfigError, which shows no value, for a header that holds a key or is none."""
    for name, value in headers.items():
        if named_secret(name) and not _REFERENCE.search(value):
            raise ConfigError(
                f"header {name} holds a key, which would be written to disk: export it, such as in "
                f"MY_KEY, and write {name}: ${{MY_KEY}} (in a shell in single quotes)"
            )
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"header {name!r} is none: give ASCII letters and signs on one line")
    return headers


def variables(value: str) -> list[str]:
    """The environment variables that a header's value names.

    >>> variables("Bearer ${MY_KEY}")
    ['MY_KEY']
    """
    return _REFERENCE.findall(value)


def filled(headers: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The headers with the variables' values. Raises ConfigError for one that is not set."""
    for name, value in headers.items():
        for variable in variables(value):
            held = environ.get(variable, "").strip()
            if not held or not held.isascii() or not held.isprintable():
                raise ConfigError(
                    f"header {name} of provider.headers takes {variable} from the environment, "
                    f"where it is {'no header' if held else 'not set'}: export it"
                )
    return {
        name: _REFERENCE.sub(lambda found: environ[found[1]].strip(), value)
        for name, value in headers.items()
    }


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Names with their values, at any depth."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        yield str(name), inner
        yield from _fields(inner)
    for inner in value if isinstance(value, list | tuple) else ():
        yield from _fields(inner)
