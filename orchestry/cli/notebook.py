"""What a notebook or script calls: `train` and `evaluate`, with the command line's live view."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from orchestry.cli.runs import Run, watched, with_methods
from orchestry.engine import evaluate as evaluation
from orchestry.engine import run as engine
from orchestry.store import run as store

_P = ParamSpec("_P")


def _returned(play: Callable[_P, store.Run]) -> Callable[_P, Run]:
    """Returns a Run, with its methods for notebooks."""

    @wraps(play)
    def returned(*args: _P.args, **kwargs: _P.kwargs) -> Run:
        return with_methods(play(*args, **kwargs))

    return returned


train = _returned(watched(engine.train))
evaluate = _returned(watched(evaluation.evaluate))
