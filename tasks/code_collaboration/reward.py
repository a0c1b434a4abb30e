"""The four parts of the reward, each a number in [0, 1]. Pure; the programs have already been run.

In the manner of MAGRPO (Liu et al. 2025, arXiv:2508.04652), whose code reward has these four
levels; how cooperation is measured is our own, since theirs is fooled by the text `aux(`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from orchestry import parse_code, prose

from .program import AUX, Program, defined
from .usage import Usage

FULL_DROP = 0.4
"""The share of the team's success that must go with aux for cooperation to be whole."""


GOES_BY: prose.Span = (0.8, 0.95)
"""Where a main's agreement with the gold one, both with other helpers, starts to count, and where
it is whole: a main that lies wherever aux is wrong agrees by luck, more often where it has only
yes and no to say."""


def structure(views: Sequence[Program], entry_point: str) -> float:
    """The share of the functions that their own authors define at the top level: half for each of
    two."""
    done = [defined(view.helper, view.name) for view in views]
    return fmean(one is not None for one in (*done, defined(views[0].main, entry_point)))


def syntax(views: Sequence[Program]) -> float:
    """The share of the codes that are valid Python; no code is none."""
    return fmean(map(is_valid, (*(view.helper for view in views), views[0].main)))


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
    quality: float, main: float, aux: float, alone: Sequence[float], name: str = AUX
) -> tuple[float, str]:
    """What the halves' work with other partners says of cooperation, and what against it.

    Each relative to the quality of the team; `alone` is what the better one passes alone.
    """
    if alone[0] >= quality:
        return 0.0, f"{name} alone passes as many tests as the two together"
    if max(alone) >= quality:
        return 0.0, f"the tests pass as well with a stub in place of {name}"
    if aux <= 0.0:
        return 0.0, f"{name} is not what the problem asks for: its answers are wrong"
    if main <= 0.0:
        return 0.0, "main does not go by what other helpers return"
    halves = (main / quality, GOES_BY), (aux / quality, (0.0, FULL_DROP))
    earned = min(prose.ramp(*half) for half in halves)
    return min(earned, cooperation(quality, alone)), ""


def objection(program: Program, entry_point: str, usage: Usage) -> str:
    """Why there is no cooperation whatever running may show, in words; '' if there may be."""
    if defined(program.helper, program.name) is None:
        return f"the helper defines no {program.name}"
    if any(defined(code, program.name) for code in program.others):
        return f"another helper puts something in the place of {program.name}"
    if defined(program.main, entry_point) is None:
        return f"main defines no {entry_point}"
    faults = {
        f"main puts something else in the place of {program.name}": usage.shadowed,
        f"main does not call {program.name}": not usage.calls,
        f"main uses nothing that {program.name} returns, but for constants": not usage.used,
        f"main is a thin wrapper around {program.name}": usage.thin,
        f"main looks into {program.name} instead of calling it": usage.pries,
    }
    return next((fault for fault, holds in faults.items() if holds), "")
