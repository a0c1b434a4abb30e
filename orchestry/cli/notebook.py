"""What a notebook or script calls: `train` and `evaluate`, with the command line's live view."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec

from orchestry.cli.watch import watching
from orchestry.engine import evaluate as evaluation
from orchestry.engine import run as engine
from orchestry.store.run import Run

P = ParamSpec("P")


def _shown(play: Callable[P, Run]) -> Callable[P, Run]:
    """Watched, unless the call names an observer; None is nobody."""
    place = [*signature(play).parameters].index("observer")

    @wraps(play)
    def shown(*args: P.args, **kwargs: P.kwargs) -> Run:
        if len(args) > place or "observer" in kwargs:
            return play(*args, **kwargs)
        with watching(verbose=False) as observer:
            kwargs["observer"] = observer
            return play(*args, **kwargs)

    return shown


train = _shown(engine.train)
evaluate = _shown(evaluation.evaluate)
