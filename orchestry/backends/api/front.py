"""Which candidates are worth keeping, and which one goes on trial next.

The Pareto front over dev problems of GEPA (Agrawal et al., arXiv 2507.19457, algorithm 2):
a candidate that is best on some problem holds something that the others lack, even where its mean
is lower.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

Scores = Mapping[str, float]
"""Dev problem -> mean score, or lift, of one candidate there."""


def front(scores: Mapping[str, Scores]) -> list[str]:
    """Ids, sorted, of the candidates that are best on some problem and dominated by no other.

    Candidates may have been played on different problems. On each problem only those who played
    it compete. One dominates another if it played all of the other's problems, is nowhere worse
    there, and somewhere better: a problem that one alone has played speaks for that one. So the
    order has no cycles, and every problem's best score is reached within the front. Candidates
    with equal scores stay together.
    """
    tops = dict[str, float]()
    for own in scores.values():
        for problem, score in own.items():
            tops[problem] = max(score, tops.get(problem, score))
    leaders = [id for id, own in sorted(scores.items()) if any(own[p] == tops[p] for p in own)]
    return [
        id for id in leaders if not any(_dominates(scores[other], scores[id]) for other in leaders)
    ]


def best(lifts: Mapping[str, Scores], ids: Iterable[str]) -> str:
    """Of these ids the one with the highest mean lift; of equal ones the lowest id.

    A lift is a candidate's score on a problem less the current library's on the same draws, so
    that candidates may be compared although they played different problems.
    """
    return min(ids, key=lambda id: (-fmean(lifts[id].values()), id))


def _dominates(one: Scores, other: Scores) -> bool:
    """Whether `one` is nowhere worse on the other's problems, and somewhere better."""
    if not other.keys() <= one.keys():
        return False
    return all(one[p] >= other[p] for p in other) and any(one[p] > other[p] for p in other)
