"""The four parts of the reward, each a number in [0, 1]. Pure; the programs have already been run.

In the manner of MAGRPO (Liu et al. 2025, arXiv:2508.04652), whose code reward has these four
levels; how cooperation is measured is our own, since theirs is fooled by the text `aux(`.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestry import parse_code, prose

from .program import AUX, Program, defined
from .usage import Usage

FULL_DROP = 0.4
"""The share of the team's success that must go with aux for cooperation to be whole."""


GOES_BY: prose.Span = (0.8, 0.95)
"""Where a main's agreement with the gold one, both with other helpers, starts to count, and where
it is whole: a main that lies wherever aux is wrong agrees by luck, more often where it has only
yes and no to say."""


def structure(program: Program, entry_point: str) -> float:
    """Half for each of the two functions that its author defines at the top level."""
    done = (defined(program.helper, AUX), defined(program.main, entry_point))
    return 0.5 * sum(function is not None for function in done)


def syntax(program: Program) -> float:
    """Half for each code that is valid Python; no code is none."""
    return 0.5 * sum(map(is_valid, (program.helper, program.main)))


def is_valid(code: str) -> bool:
    """Whether there is code, and it parses."""
    tree = parse_code(code)
    return tree is not None and bool(tree.body)


def cooperation(honest: float, stubbed: Sequence[float]) -> float:
    """How much of the quality goes when aux is replaced by the most successful of its stubs.

    Relative to the quality with aux, whole from FULL_DROP on; 0 if there is nothing to lose.
    """
    if honest <= 0.0 or not stubbed:
        return 0.0
    drop = (honest - max(stubbed)) / honest
    return min(1.0, max(0.0, drop) / FULL_DROP)


def partnership(
    quality: float, main: float, aux: float, alone: Sequence[float]
) -> tuple[float, str]:
    """What the halves' work with other partners says of cooperation, and what against it.

    Each relative to the quality of the team; `alone` is what the better one passes alone.
    """
    if alone[0] >= quality:
        return 0.0, "aux alone passes as many tests as the two together"
    if max(alone) >= quality:
        return 0.0, "the tests pass as well with a stub in place of aux"
    if aux <= 0.0:
        return 0.0, "aux is not what the problem asks for: its answers are wrong"
    if main <= 0.0:
        return 0.0, "main does not go by what other helpers return"
    halves = (main / quality, GOES_BY), (aux / quality, (0.0, FULL_DROP))
    earned = min(prose.ramp(*half) for half in halves)
    return min(earned, cooperation(quality, alone)), ""


def objection(program: Program, entry_point: str, usage: Usage) -> str:
    """Why there is no cooperation whatever running may show, in words; '' if there may be."""
    if defined(program.helper, AUX) is None:
        return "the helper defines no aux"
    if defined(program.main, entry_point) is None:
        return f"main defines no {entry_point}"
    faults = {
        "main puts something else in the place of aux": usage.shadowed,
        "main does not call aux": not usage.calls,
        "main uses nothing that aux returns, but for constants": not usage.used,
        "main is a thin wrapper around aux": usage.thin,
        "main looks into aux instead of calling it": usage.pries,
    }
    return next((fault for fault, holds in faults.items() if holds), "")
