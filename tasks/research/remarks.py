"""What is said and counted of a team's work. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from . import cited, reward
from .notes import needed
from .reward import Work

TOLD = 0.8
"""A factor below this is named."""


def feedback(work: Work) -> str:
    """What was retrieved, covered and borne out, in prose; no key facts."""
    wanted = needed(work.problem)
    right = [name for name in work.named if name in wanted]
    said = [
        f"The retriever named {len(work.named)} notes, {len(right)} of the {len(wanted)} needed."
    ]
    rows = (
        ("analyst", work.claims, reward.claim_factors),
        ("writer", work.answer, reward.answer_factors),
    )
    for role, text, factors in rows:
        found = cited.sentences(text)
        if not found:
            said.append(f"The {role} wrote no sentence.")
            continue
        covered = work.covered(found)
        borne = sum(work.support(one) >= 0.5 for one in found)
        said.append(
            f"The {role} states {covered.count(1.0)} of {len(covered)} key facts with their notes; "
            f"{borne} of {len(found)} sentences are borne out by what they cite; "
            f"{work.copying(text):.0%} of the words are copied."
        )
        if why := [why for why, worth in factors(work).items() if worth < TOLD]:
            said.append(f"The {role}'s text counts little, since {', '.join(why)}.")
    return " ".join(said)


def tags(work: Work, found: Mapping[str, float]) -> list[str]:
    """What is counted over a run's leaves."""
    said = cited.sentences(work.answer)
    have = {note.id for note in work.retrieved}
    holds = {
        "whole": all(value > 1.0 - 1e-9 for value in found.values()),
        "answered": bool(said) and min(work.covered(said)) == 1.0,
        "retrieved": set(needed(work.problem)) <= have,
        "no_notes": not have,
        "uncited": any(not one.ids for one in said),
        "false_citation": any(not have.issuperset(one.ids) for one in said),
        "copied": bool(said) and work.copying(work.answer) > reward.COPIED[1],
        "trapped": work.trapped(),
    }
    return [tag for tag, held in holds.items() if held]
