"""What a notebook or script calls: `train` and `evaluate`, with the command line's live view."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from orchestry.cli.runs import Run, own, watched
from orchestry.engine import evaluate as evaluation
from orchestry.engine import run as engine
from orchestry.store import run as store

P = ParamSpec("P")


def _returned(play: Callable[P, store.Run]) -> Callable[P, Run]:
    """Returns the run with what a notebook does with it."""

    @wraps(play)
    def returned(*args: P.args, **kwargs: P.kwargs) -> Run:
        return own(play(*args, **kwargs))

    return returned


train = _returned(watched(engine.train))
evaluate = _returned(watched(evaluation.evaluate))
