"""The house's conventions: each one sentence, and a check that says what a text did instead. Pure.

A convention about a fact is kept where the text has the fact in the house's form, and in no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .brief import EFFECT, NUMBERS, REASON, SYMBOLS, Brief, dates
from .sentences import sentences

MAJOR, MINOR = 2.0, 1.0
"""What readers and tools rely on, and what is a matter of wording."""
MOST_WORDS = 16
"""Of a sentence."""
MOST_SHOWN = 32
"""Characters of a text that a remark quotes."""
DEGREE = ("very", "really", "quite", "just", "rather")
_NO_ADVERBS = """
only daily weekly monthly hourly nightly yearly early family reply supply apply multiply rely comply
assembly anomaly ally rally tally bully belly jelly fly july italy likely friendly imply
"""
NO_ADVERBS = frozenset(_NO_ADVERBS.split())
"""Words in -ly that are no adverbs of manner or degree."""
_PERSON = re.compile(r"\b(?:[Ww]e|us|[Oo]urs?|[Yy]ou|[Yy]ours?|I|[Mm]y|me)\b")  # not the US
_CONTRACTION = re.compile(
    r"\b\w+(?:n't|'(?:re|ve|ll|d|m))\b|\b(?:it|that|there|what|here|he|she)'s\b", re.IGNORECASE
)
_MODAL = re.compile(r"\b(?:will|would|should|could|might|may|shall|won't|wouldn't|shouldn't"
                    r"|couldn't|(?:we|it|that|they|you|this)'(?:ll|d))\b")  # fmt: skip
_ASIDE = re.compile(r"[()\u2013\u2014;]|\s--?\s")
_QUOTED = re.compile(r"`[^`\n]*`")
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(NUMBERS)})\b", re.IGNORECASE)
_UNITS = "|".join([*(f"{name}s?" for name in SYMBOLS), "secs?", "mins?", "hrs?", "msecs?"])
_UNIT_WORD = re.compile(rf"\b[\d.,]+[\s-]?(?:{_UNITS})\b", re.IGNORECASE)
_UNIT_TIGHT = re.compile(rf"\b\d+-?(?:{'|'.join(SYMBOLS.values())})\b")


@dataclass(frozen=True, slots=True)
class Convention:
    """One rule of the house."""

    name: str
    weight: float
    rule: str
    """As it would stand in a prompt."""
    fault: Callable[[str, Brief], str]
    """What the text has instead, in a few words; '' where it keeps the rule."""


def broken(text: str, brief: Brief) -> dict[str, str]:
    """The names of the conventions that a text breaks, each with what it has instead."""
    found = {one.name: one.fault(text, brief) for one in CONVENTIONS}
    return {name: fault for name, fault in found.items() if fault}


def kept(text: str, brief: Brief) -> float:
    """The share of the conventions that a text keeps, by weight."""
    faults = broken(text, brief)
    weights = {one.name: one.weight for one in CONVENTIONS}
    return 1.0 - sum(weights[name] for name in faults) / sum(weights.values())


def _label(text: str, brief: Brief) -> str:
    wanted = brief.house["severity"]
    return "" if text.startswith(f"{wanted} ") else f"begins {_cut(text, 14)}, not {wanted}"


def _issue(text: str, brief: Brief) -> str:
    wanted = brief.house["issue"]
    if text.endswith(wanted) and len(re.findall(rf"\b{brief.issue}\b", text)) == 1:
        return ""
    return f"ends {_cut(text[-14:], 14)}, not {wanted}"


def _owner(text: str, brief: Brief) -> str:
    wanted = brief.house["owner"]
    found = re.search(rf"(?:^|[.!?\]:`]\s+|\n){re.escape(wanted)}", text)
    return "" if found else f'no sentence "{wanted}"'


def _date(text: str, brief: Brief) -> str:
    return _form([*dates(text)], brief.house["date"])


def _unit(text: str, brief: Brief) -> str:
    wrong = [*_UNIT_WORD.findall(text), *_UNIT_TIGHT.findall(text)]
    right = re.search(rf"(?<![\d.,]){re.escape(brief.house['amount'])}\b", text)
    return _form([*wrong, *([brief.house["amount"]] if right else [])], brief.house["amount"])


def _order(text: str, brief: Brief) -> str:
    places = brief.places(text)
    effect, reason = places[EFFECT], places[REASON]
    if effect is None or reason is None:
        return "effect or cause is missing"
    return "" if effect < reason else "the cause comes before the effect on users"


def _product(text: str, brief: Brief) -> str:
    found = re.findall(rf"(?:Halden )?\b{brief.product}\b", text)
    return _form(found, brief.house["product"])


def _person(text: str, brief: Brief) -> str:
    return _has(_PERSON, text)


def _adverb(text: str, brief: Brief) -> str:
    words = re.findall(r"[a-z]+", _QUOTED.sub("", text).lower())
    found = [w for w in words if w in DEGREE or (w.endswith("ly") and w not in NO_ADVERBS)]
    return f'has "{found[0]}"' if found else ""


def _length(text: str, brief: Brief) -> str:
    most = max((len(one.split()) for one in sentences(text)), default=0)
    return f"a sentence of {most} words, over {MOST_WORDS}" if most > MOST_WORDS else ""


def _code(text: str, brief: Brief) -> str:
    outside = _QUOTED.sub("", text)
    if re.search(rf"\b{re.escape(brief.code)}\b", outside):
        return f'"{brief.code}", not "{brief.house["code"]}"'
    return "" if brief.code in text else f"no {_cut(brief.house['code'])}"


def _digits(text: str, brief: Brief) -> str:
    wanted = brief.house["count"].split()[0]
    found = [wanted] if re.search(rf"(?<![\d,.\w]){wanted}(?![\d,.]\d)\b", text) else []
    raw = re.findall(rf"\b{brief.count}\b", text) if brief.count >= 1000 else []
    return _form([*_NUMBER_WORD.findall(text), *raw, *found], wanted)


def _aside(text: str, brief: Brief) -> str:
    found = _ASIDE.search(_QUOTED.sub("", text))
    return f'has "{found[0].strip()}"' if found else ""


def _contraction(text: str, brief: Brief) -> str:
    return _has(_CONTRACTION, text)


def _modal(text: str, brief: Brief) -> str:
    return _has(_MODAL, text)


def _form(found: list[str], wanted: str) -> str:
    """The first form that is not the house's, or that there is none."""
    wrong = [one for one in found if one != wanted]
    if wrong:
        return f"{_cut(wrong[0])}, not {_cut(wanted)}"
    return "" if found else f"no {_cut(wanted)}"


def _has(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(_QUOTED.sub("", text.replace("\u2019", "'")))
    return f'has "{found[0]}"' if found else ""


def _cut(text: str, most: int = MOST_SHOWN) -> str:
    return f'"{text[:most].strip()}"'


CONVENTIONS = (
    Convention("severity label", MAJOR, "Begin with the severity in capitals and a colon, as in "
               "LOW:, MEDIUM: or HIGH:", _label),
    Convention("issue at the end", MAJOR, "End with the issue in square brackets, with the prefix "
               "HAL, as in [HAL-1234]", _issue),
    Convention("owner", MAJOR, "Name the team in a short sentence near the end, as in Owner: "
               "storage.", _owner),
    Convention("date", MAJOR, "Write a date as day, month in full, year, as in 5 March 2026",
               _date),
    Convention("unit", MAJOR, "Write a unit as its symbol after a space, as in 30 s, 5 min or "
               "512 MB", _unit),
    Convention("effect first", MAJOR, "Tell what users notice before the cause of it", _order),
    Convention("product", MAJOR, "Put the company's name Halden before a product's name, as in "
               "Halden Ledger", _product),
    Convention("person", MINOR, "Never address or mention people as we, us, our, you, your or I",
               _person),
    Convention("adverbs", MINOR, "Leave out adverbs in -ly and words of degree such as very or "
               "just", _adverb),
    Convention("sentence length", MINOR, f"Keep every sentence to {MOST_WORDS} words at most",
               _length),
    Convention("code", MINOR, "Set every name from the code in backticks, as in `lock_ttl`", _code),
    Convention("digits", MINOR, "Write counts in digits, with a comma from 1,000 on, as in 3 files "
               "or 12,000 rows", _digits),
    Convention("asides", MINOR, "Use no round brackets, dashes or semicolons", _aside),
    Convention("contractions", MINOR, "Spell contractions out, so does not instead of doesn't",
               _contraction),
    Convention("modals", MINOR, "State what is, without will, would, should, could, may or might",
               _modal),
)  # fmt: skip
"""In the order of their weight."""
