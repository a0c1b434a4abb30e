"""What to do with a judge that was measured, in words, by named thresholds."""

from __future__ import annotations

from typing import Literal

from orchestry.core.types import Frozen
from orchestry.judge.measures import Measures, Share

Level = Literal["unmeasured", "unusable", "chance", "unsure", "usable", "trustworthy"]
CHANCE = 0.5
"""Agreement of a coin. A judge is of use only if the whole interval lies above."""
HOPELESS = 0.65
"""An interval that holds chance and ends below this is an answer, not a want of problems: at best
the judge is right in two pairs of three, and a third of what it decides is decided wrongly."""
TRUSTED = 0.75
"""Agreement, at the interval's low end, from which a judge errs at most half as often as a coin."""
MOST_MALFORMED = 0.2
"""Share of verdicts without numbers above which the calls are better spent on samples."""
LARGE_EFFECT = 1.0
"""Points by place from which neighbours on the ten-point scale change places."""
LARGE_EXCESS = 0.1
"""Share of pairs flipped by a swap beyond those that a repeat flips anyway: what the place decides.
Flips by chance alone are common (13.6 % of pairs in published measurements), and no fault of it."""


class Advice(Frozen):
    """A verdict on the judge: `level` for programs, `text` for people."""

    level: Level
    text: str


def advise(found: Measures) -> Advice:
    """The verdict, with the figures that it rests on."""
    total = sum(found.verdicts.values())
    malformed = found.verdicts.get("malformed", 0) / total if total else 0.0
    if malformed > MOST_MALFORMED:
        return _advice(
            "unusable", f"{malformed:.0%} of its verdicts can't be read: leave the judge off"
        )
    once, twice = found.agreement, found.agreement_twice
    if once is None or twice is None:
        return _advice("unmeasured", "no pair of different worth was judged: nothing is known")
    best = max(once, twice, key=lambda each: each.low)
    if best.low <= CHANCE:
        return _at_chance(once)
    return _above_chance(found, once, twice)


def _at_chance(once: Share) -> Advice:
    figures = f"agrees with the task's scores on {_figures(once)}"
    if once.high < HOPELESS:
        return _advice("chance", f"{figures}, no better than chance: leave the judge off")
    return _advice(
        "unsure",
        f"{figures}, which does not rule out chance: leave the judge off, or ask on more "
        "problems (--problems)",
    )


def _above_chance(found: Measures, once: Share, twice: Share) -> Advice:
    placed = _placed(found)
    if once.low >= TRUSTED and not placed:
        text = f"trustworthy: agrees with the task's scores on {_figures(once)}"
        return _advice("trustworthy", f"{text}, and places do not sway it")
    if placed and twice.low >= TRUSTED:
        text = f"trustworthy with judge.repeats=2: agrees on {_figures(twice)}; one call is swayed"
        return _advice("trustworthy", f"{text} by places ({placed})")
    if placed or once.low <= CHANCE or twice.value > once.value + LARGE_EXCESS:
        why = f"; one call is swayed by places ({placed})" if placed else ""
        text = f"usable with judge.repeats=2: agrees with the task's scores on {_figures(twice)}"
        return _advice("usable", f"{text}{why}")
    return _advice("usable", f"usable: agrees with the task's scores on {_figures(once)}")


def _placed(found: Measures) -> str:
    """How places sway the judge; '' where they do not."""
    effect, swap, repeat = found.position_effect, found.swap_consistency, found.repeat_flips
    if effect is not None and abs(effect) >= LARGE_EFFECT:
        return f"standing first is worth {effect:+.1f} points"
    if swap and repeat and (excess := 1.0 - swap.value - repeat.value) >= LARGE_EXCESS:
        return f"a swap flips {excess:.0%} of the pairs more than a repeat does"
    return ""


def _figures(share: Share) -> str:
    return (
        f"{share.value:.0%} of {share.pairs} pairs (95 % interval {share.low:.0%} to "
        f"{share.high:.0%})"
    )


def _advice(level: Level, text: str) -> Advice:
    return Advice(level=level, text=text)
