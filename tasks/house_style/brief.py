"""What a text has to tell, and whether it tells it, in whatever form. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from orchestry import Problem, errors

from .sentences import sentences, sound
from .stated import stated, tells_the_past

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
SYMBOLS = {"millisecond": "ms", "second": "s", "minute": "min", "hour": "h", "megabyte": "MB",
           "gigabyte": "GB"}  # fmt: skip
OTHER_SYMBOLS = {"second": "secs?", "minute": "mins?", "hour": "hrs?", "millisecond": "msecs?"}
"""Short forms that people write too."""
SEVERITIES = ("low", "medium", "high")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
           "twelve")  # fmt: skip
"""Number words from 2 on: `one` is mostly a pronoun."""
EFFECT, REASON, CHANGE = "what users notice", "why", "what holds now"
SENTENCES = (EFFECT, REASON, CHANGE)
"""The facts that take a sentence."""


@dataclass(frozen=True)
class Brief:
    """The facts of one text, as data."""

    kind: str
    product: str
    code: str
    day: date
    amount: int
    unit: str
    count: int
    counted: str
    severity: str
    owner: str
    issue: int
    said: tuple[str, str, str]
    """Effect, reason and change as the house says them, with the facts' names in braces."""
    keys: tuple[tuple[str, ...], ...]
    """Per sentence: beginnings of words that must stand together; `|` parts alternatives."""
    verbs: tuple[str, ...]
    """Per sentence: beginnings of verbs, of which it has to have one; '' for any."""

    @classmethod
    def of(cls, problem: Problem) -> Brief:
        """Raises TaskError if the problem's data are not those of a text."""
        data: Any = problem.data
        try:
            amount, unit = data["amount"]
            count, counted = data["count"]
            effect, reason, change = data["said"]
            return cls(
                day=date.fromisoformat(data["date"]),
                amount=amount,
                unit={name: name for name in SYMBOLS}[unit],
                count=count,
                counted=counted,
                said=(effect, reason, change),
                keys=tuple(tuple(words) for words in data["keys"]),
                verbs=tuple(data.get("verbs", [""] * len(SENTENCES))),
                **{name: data[name] for name in ("kind", "product", "code", "severity")},
                **{name: data[name] for name in ("owner", "issue")},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise errors.TaskError(
                f"problem '{problem.id}' is no text of the house ({errors.reason(error)}): give "
                "its data the keys that problems.jsonl has"
            ) from None

    def written(self, forms: Mapping[str, str]) -> tuple[str, ...]:
        """The three sentences with these forms of the facts."""
        return tuple(sentence.format_map(forms) for sentence in self.said)

    @cached_property
    def house(self) -> Mapping[str, str]:
        """The facts as the house writes them."""
        return {
            "product": f"Halden {self.product}",
            "code": f"`{self.code}`",
            "date": f"{self.day.day} {MONTHS[self.day.month - 1]} {self.day.year}",
            "amount": f"{self.amount} {SYMBOLS[self.unit]}",
            "count": f"{self.count:,} {self.counted}",
            "severity": f"{self.severity.upper()}:",
            "owner": f"Owner: {self.owner}.",
            "issue": f"[HAL-{self.issue}]",
        }

    @property
    def gold(self) -> str:
        """The text as the house wants it."""
        forms = self.house
        said = " ".join(self.written(forms))
        return f"{forms['severity']} {said} {forms['owner']} {forms['issue']}"

    @property
    def rough_date(self) -> str:
        """The date as the notes write it."""
        return f"{MONTHS[self.day.month - 1]} {self.day.day}, {self.day.year}"

    @property
    def rough_amount(self) -> str:
        return f"{self.amount} {self.unit}{'s' if self.amount != 1 else ''}"

    @property
    def rough_count(self) -> str:
        small = 2 <= self.count <= 12
        return f"{NUMBERS[self.count - 2] if small else self.count} {self.counted}"

    def told(self, text: str) -> dict[str, bool]:
        """Each fact, and whether the text tells it, in any form."""
        plain = text.lower()
        places = self.places(text)
        return {
            **{name: place is not None for name, place in places.items()},
            "product": re.search(rf"\b{self.product}\b", text) is not None,
            "name in the code": re.search(rf"\b{re.escape(self.code)}\b", text) is not None,
            "date": self.day in dates(text).values(),
            "amount": re.search(self._amount, plain) is not None,
            "count": re.search(self._count, plain) is not None,
            "severity": self._severe(text),
            "team": re.search(rf"\b{self.owner}\b", plain) is not None,
            "issue": re.search(rf"\b{self.issue}\b", text) is not None,
        }

    def strange_numbers(self, text: str) -> list[str]:
        """Numbers that the notes don't have."""
        known = {self.day.day, self.day.month, self.day.year, self.amount, self.count, self.issue}
        found = re.findall(r"\d+(?:[.,]\d+)*", text.replace(self.code, ""))
        return [one for one in found if not set(_numbers(one)) <= known]

    def places(self, text: str) -> dict[str, int | None]:
        """Where each of the three sentences is told in the text; None where it is not. What is no
        sound sentence tells nothing."""
        found: dict[str, int | None] = dict.fromkeys(SENTENCES)
        start, house, past = 0, self.written(self.house), tells_the_past(text)
        for sentence in filter(sound, sentences(text)):
            start = text.index(sentence, start)
            rows = zip(SENTENCES, self.keys, self.verbs, house, strict=True)
            for name, keys, verbs, own in rows:
                place = stated(sentence, keys, verbs, own, over=past and name != CHANGE)
                if place is not None and found[name] is None:
                    found[name] = start + place
        return found

    @property
    def _amount(self) -> str:
        names = f"{self.unit}s?|{SYMBOLS[self.unit].lower()}|{OTHER_SYMBOLS.get(self.unit, '$^')}"
        return rf"(?<![\d.,]){self.amount}[\s-]?(?:{names})\b"

    @property
    def _count(self) -> str:
        forms = {str(self.count), f"{self.count:,}", self.rough_count.split()[0]}
        return rf"(?<![\d.,])\b(?:{'|'.join(forms)})\b(?:\s+\w+)?\s+{self.counted.split()[-1]}"

    def _severe(self, text: str) -> bool:
        others = [name.upper() for name in SEVERITIES if name != self.severity]
        right = re.search(rf"\b{self.severity}\b", text, re.IGNORECASE)
        return right is not None and not re.search(rf"\b(?:{'|'.join(others)})\b", text)


def dates(text: str) -> dict[str, date]:
    """The dates of a text as they are written there, in five common forms."""
    found = {}
    for pattern, order in _DATES:
        for match in pattern.finditer(text):
            day = _date(*(match[place] for place in order))
            if day is not None:
                found[match[0]] = day
    return found


_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" if month[3:] else month for month in MONTHS)
_DATES = (
    (re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\.? ({_MONTH})\.?,? (\d{{4}})\b"), (3, 2, 1)),
    (re.compile(rf"\b({_MONTH})\.? (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})\b"), (3, 1, 2)),
    (re.compile(r"\b(\d{4})[-/](\d{1,2})[-/](\d{1,2})\b"), (1, 2, 3)),
    (re.compile(r"\b(\d{1,2})/(\d{1,2})/(\d{4})\b"), (3, 1, 2)),
    (re.compile(r"\b(\d{1,2})\.(\d{1,2})\.(\d{4})\b"), (3, 2, 1)),
)
"""Patterns, and where year, month and day stand in them."""


def _date(year: str, month: str, day: str) -> date | None:
    short = [name[:3] for name in MONTHS]
    number = int(month) if month.isdigit() else short.index(month[:3]) + 1
    try:
        return date(int(year), number, int(day))
    except ValueError:
        return None


def _numbers(written: str) -> list[int]:
    """A number with commas before each three digits is one; else its parts are several."""
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+", written):
        return [int(written.replace(",", ""))]
    return [int(part) for part in re.split(r"[.,]", written)[:4] if len(part) < 12] or [-1]
