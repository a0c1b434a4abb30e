"""Non-finite numbers: which weights hold them, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from orchestry.core.errors import LearnError

if TYPE_CHECKING:
    from orchestry.backends.local.crew import Crew

_AGAIN = "begin another run from an earlier checkpoint (learn.from)"


class NotFiniteError(LearnError):
    """What was computed holds NaN or infinity; the message says what, and not yet why."""


@contextmanager
def explained(crews: Sequence[Crew]) -> Iterator[None]:
    """Says which weights are at fault. The same batch comes to the same numbers on a resume, so
    nothing that a resume may change helps."""
    try:
        yield
    except NotFiniteError as error:
        raise LearnError(f"{error}; {_why(crews)}") from error


def _why(crews: Sequence[Crew]) -> str:
    for crew in crews:
        for name, weight in crew.base.model.named_parameters():
            if not _finite(weight):
                return (
                    f"the base {crew.base.name} is damaged, its {name} holds NaN or infinity: "
                    "fetch it again, or name another in provider.model"
                )
        for index, role in enumerate(crew.roles):
            if not all(map(_finite, crew.adapters.parameters(index))):
                return f"the adapter of {role} holds NaN or infinity: {_AGAIN}"
    dtypes = {crew.base.model.dtype for crew in crews} - {torch.float32, torch.float64}
    sizes = [w.detach().abs().max().item() for crew in crews for w in crew.adapters.parameters()]
    told = f"all weights are finite (the adapters' largest number is {max(sizes):.2g})"
    if dtypes:
        return f"{told}, and {str(dtypes.pop())[6:]} is too narrow: set learn.dtype=float32"
    return (
        f"{told}, and what they compute overflows float32: {_AGAIN} or without learn.from, with a "
        "lower learn.learning_rate or learn.alpha"
    )


def _finite(weight: torch.Tensor) -> bool:
    return not weight.is_floating_point() or bool(weight.isfinite().all())
