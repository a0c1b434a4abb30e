"""The parts of the reward: the facts that a text tells, and the conventions that it keeps. Pure."""

from __future__ import annotations

from statistics import fmean

from orchestry import prose

from . import conventions
from .brief import SENTENCES, Brief
from .sentences import soundness

SOUND: prose.Span = (0.4, 0.8)
"""Share of a text's words that stand in sound sentences."""
AGAIN: prose.Span = (0.4, 0.8)
"""Share of its runs of three words that are different: less in a text that says all twice."""
LENGTH: prose.Span = (160, 110)
"""Words of a text: it counts for nothing at the first number, and in full up to the second."""
INVENTED = 0.5
"""What a text with a number is worth that the notes don't have."""


def content(text: str, brief: Brief) -> float:
    """The share of the three sentences that are told, times the share of the other facts; less for
    numbers that are not the notes', for what is no sentence, and for endless texts."""
    told = brief.told(text)
    said = fmean(told[name] for name in SENTENCES)
    facts = fmean(told[name] for name in told if name not in SENTENCES)
    invented = INVENTED if brief.strange_numbers(text) else 1.0
    return said * facts * invented * sense(text) * prose.ramp(len(text.split()), LENGTH)


def sense(text: str) -> float:
    """How far a text is made of sentences and says each thing once, from 0 to 1."""
    new = prose.novelty(prose.words(text))
    return prose.ramp(soundness(text), SOUND) * prose.ramp(new, AGAIN)


def parts(text: str, brief: Brief) -> dict[str, float]:
    """The two parts. Conventions count by the square of what is told: form without content is
    worth nothing."""
    told = content(text, brief)
    return {"facts": told, "style": told**2 * conventions.kept(text, brief)}


def feedback(text: str, brief: Brief) -> str:
    """What is missing and what was broken, each by its name and with what the house wrote there."""
    if not text:
        return "There is no text."
    told = brief.told(text)
    missing = [name for name, there in told.items() if not there]
    said = [f"{len(told) - len(missing)} of {len(told)} facts are told."]
    said += [f"Missing: {', '.join(missing)}."] if missing else []
    strange = brief.strange_numbers(text)
    said += [f"Not in the notes: {', '.join(strange[:3])}."] if strange else []
    said += ["It does not read as sentences, or says all twice."] if sense(text) < 1.0 else []
    broken = conventions.broken(text, brief)
    said += ["Against the house's conventions:"] if broken else ["All conventions are kept."]
    return "\n".join([" ".join(said), *(f"- {name}: {fault}" for name, fault in broken.items())])


def tags(text: str, brief: Brief) -> list[str]:
    """What is counted over a run's leaves: also each convention that was broken."""
    told, broken = brief.told(text), conventions.broken(text, brief)
    holds = {
        "whole": all(told.values()) and not broken and content(text, brief) == 1.0,
        "facts_missing": not all(told.values()),
        "numbers_invented": bool(brief.strange_numbers(text)),
        "no_sentences": sense(text) < 1.0,
    }
    found = [tag for tag, held in holds.items() if held]
    return found + [f"broke_{name.replace(' ', '_')}" for name in broken]
