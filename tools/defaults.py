"""configs/default.yaml: every config key with its default and the first sentence on it.

    python -m tools.defaults --write

A key's sentence is that of the docstring under its field; a section's is that of its class.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from orchestry.core.config import RunConfig
from tools import put
from tools.keys import PLACEHOLDERS, explanations, model_in

PAGE = Path(__file__).resolve().parent.parent / "configs" / "default.yaml"
COMMAND = "python -m tools.defaults --write"
WIDTH = 100
EDITORS = "# yaml-language-server: $schema=schema.json\n"
"""Editors with a YAML language server complete and check keys by it."""
HEAD = f"""\
{EDITORS}## Every key of a run's config with its default, written by `{COMMAND}`.
## To set some, copy this file and take away the leading "# " of a key and of those above it, or
## set them by --set, as in --set search.k_samples=8. docs/cli.md has the limits of each.
## ROLE and MODEL stand for names of yours, and the two prices of MODEL are an example.
"""
EXAMPLES = {"prices.input": 3.0, "prices.output": 15.0}
"""Values for keys without a default."""
Line = tuple[str, str]
"""What a line begins with, "# " for a key and "##" for a word on it, and the rest."""


def page() -> str:
    """The whole file: YAML that sets nothing."""
    lines = (f"{mark}{text}".rstrip() for mark, text in _lines(RunConfig, "", 0))
    return HEAD + "".join(f"{line}\n" for line in lines)


def _lines(model: type[BaseModel], above: str, depth: int) -> Iterator[Line]:
    """A section's keys, each below its sentence."""
    said, schema = explanations(model), model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        key = field.alias or name
        inner, own = model_in(schema[key]), PLACEHOLDERS.get(f"{above}{key}")
        if inner is None or not (own or isinstance(field.default, BaseModel)):
            yield from _sentence(said[name], depth)
            value = schema[key].get("default", {})
            value = EXAMPLES[f"{above}{key}"] if field.is_required() else value
            yield "# ", "  " * depth + _set(key, value)
            continue
        yield "", ""
        yield from _sentence(said[name] or inner.__doc__ or "", depth)
        yield "# ", "  " * depth + f"{key}:"
        if own:  # the section's keys are names of the user's
            yield "# ", "  " * (depth + 1) + f"{own}:"
        yield from _lines(inner, f"{above}{key}.", depth + 1 + bool(own))


def _sentence(text: str, depth: int) -> Iterator[Line]:
    """The first one, in the words of YAML."""
    first = re.split(r"(?<=\.)(?<!\bDr\.)\s+", " ".join(text.split()), maxsplit=1)[0]
    words = re.sub(r"\bNone\b", "null", first)
    for line in textwrap.wrap(words, WIDTH - 3 - 2 * depth):
        yield "## ", "  " * depth + line


def _set(key: str, value: Any) -> str:
    plain = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return f"{key}: {plain.split(chr(10))[0]}"


if __name__ == "__main__":
    put(page(), PAGE)
