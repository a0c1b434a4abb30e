"""How a main function works with its helper: one of four schemes, or none."""

from __future__ import annotations

from typing import Literal

from .usage import Usage

Scheme = Literal["fallback", "decorator", "coordinator", "strategy_filter", "none"]


def scheme_of(usage: Usage) -> Scheme:
    """The scheme of a code that has been read.

    none: aux isn't called, its result is unused, main binds the name itself, or main is a thin
    wrapper. The others in order of precedence, the first that holds:

    coordinator: a result that is used comes from a call in a loop, a comprehension or a recursion,
    or from a function that aux was handed to (`map(aux, xs)`). First, since what happens to one
    item (a filter in a comprehension, a `try` in a loop) is part of how the items are worked off.
    fallback: main delivers the result, or else what it found itself: in a handler of the `try`
    around the call or after it, on the other side of a condition on the result, after `or`. Before
    the filter, since asking whether a result is valid is a condition on it as well. A constant is
    no way of its own: main must compute, or give an argument back.
    strategy_filter: a condition on the result, outside of loops, decides which way main goes.
    Before the decorator, since whatever main returns then is worked out on one of the ways. Ways
    that all go on with the result only (`-r if r < 0 else r`) are work on it, not a filter.
    decorator: all other uses: main works on the argument or the result, or adds cases of its own.
    """
    trace = usage.trace
    if trace is None or not usage.used or usage.thin:
        return "none"
    if any(site.loop or site.within & trace.recursive for site in trace.used):
        return "coordinator"
    if trace.fallback:
        return "fallback"
    return "strategy_filter" if trace.filtered else "decorator"
