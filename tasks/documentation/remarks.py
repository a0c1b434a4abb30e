"""What is said and counted of a document: what it lacks at first sight, feedback, tags. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import reward
from .reward import Document

MANY = 12
"""Remarks that are told of one document."""


def lacking(document: Document) -> list[str]:
    """What can be seen without running anything: sections, parameters and examples not there."""
    return [*_lacking(document)][:MANY]


def _lacking(document: Document) -> Iterator[str]:
    sampled = {q.partition(".")[0] for q, one in document.sections.items() if one.examples.strip()}
    for name in document.module.names:
        if name.qualified not in document.sections:
            yield f"a section on {name.qualified}"
            continue
        for param in name.params:
            if not reward.documented(document, name, param):
                yield f"the parameter {param} of {name.qualified}"
    yield from (f"an example of {top}" for top in document.module.shown if top not in sampled)


def feedback(document: Document) -> str:
    """What is missing, false, and which examples fail, in prose; no right answers."""
    if not document.sections:
        return "The answers hold no section on any public name of the module."
    missing = lacking(document)
    said = [f"Missing: {'; '.join(missing)}."] if missing else []
    for name in document.module.names:
        if name.qualified in document.sections:
            found = reward.claimed(document, name)
            said += [f"{name.qualified} {fault}." for fault in (*found.false, *found.lacking)]
            weak = document.described(name) < 0.5
            said += [f"What is said of {name.qualified} is hardly a description."] if weak else []
    for qualified, ran in document.ran.items():
        said += [f"Wrong in {qualified}: {one.source.strip()}" for one in ran if not one.holds]
        said += [
            f"Shows nothing of {qualified}: {one.source.strip()}"
            for one in ran
            if one.holds and one.shows and not one.tells
        ]
    return " ".join(said[:MANY]) or "All names, parameters and examples are in order."


def tags(document: Document, found: Mapping[str, float], replaced: int) -> list[str]:
    """What is counted over a run's leaves; `replaced` sections are the reviewer's."""
    ran = [one for some in document.ran.values() for one in some]
    false = [reward.claimed(document, name).false for name in document.module.names]
    holds = {
        "whole": all(value > 1.0 - 1e-9 for value in found.values()),
        "covered": found["names"] > 1.0 - 1e-9,
        "no_sections": not document.sections,
        "no_examples": bool(document.sections) and not ran,
        "wrong_examples": not all(one.holds for one in ran),
        "false_claims": any(false),
        "revised": replaced > 0,
    }
    return [tag for tag, held in holds.items() if held]
