"""Whether a base learns from the policy that draws: found on any family by doing both once.

Two prompts of unequal lengths are drawn in one batch, each with an adapter of its own, then
computed as learning computes them, in train mode, twice. What the two must not differ by:
dropout that stays on, positions or experts that depend on the batch, an attention or logits that
learning computes otherwise. A base that fails is refused before anything is drawn or paid.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.model import Base
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler
from orchestry.backends.local.targets import ALL_LINEAR
from orchestry.core.errors import ConfigError, NotFiniteError

LENGTHS = (5, 23)
"""Tokens of the two prompts."""
_DRAWN = 6
_CLOSE = 2e-3
"""Nats between two computations of a token in float32."""
_CLOSE_HALF = 0.5
"""The same in 16, 8 or 4 bits, which round other shapes otherwise."""


def check_learnable(base: Base) -> None:
    """Raises ConfigError, with the reason, for a base whose learned policy is not the drawn one."""
    model: Any = base.model
    training = model.training
    adapters = Adapters(base, ("one", "two"), rank=2, dropout=0.0, targets=ALL_LINEAR, beside=True)
    try:
        _check(base, adapters)
    finally:
        adapters.detach()
        model.train(training)


def _check(base: Base, adapters: Adapters) -> None:
    model: Any = base.model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in adapters.parameters():
            weight.add_((torch.randn(weight.shape, generator=generator) * 0.02).to(weight))
    prompts = _prompts(base, generator)
    try:
        drawn = [one for (one,) in Sampler(base, adapters).draw(prompts, 1)]
        model.train()
        first, again = (_learned(base, adapters, prompts, drawn) for _ in range(2))
    except NotFiniteError:
        return  # the weights are damaged, which the first draw says with the weight's name
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"the base {base.name} can't be trained here: drawing and learning from two prompts "
            f"failed ({type(error).__name__}: {' '.join(str(error).split())[:200]}): choose "
            "another base"
        ) from error
    close = _CLOSE if model.dtype == torch.float32 and not _coded(model) else _CLOSE_HALF
    _compare(base, "twice the same way, in train mode", first, again, _CLOSE)
    served = torch.tensor([value for one in drawn for value in one.logprobs])
    _compare(base, "as it was drawn and as it is learned from", served, first, close)


def _prompts(base: Base, generator: torch.Generator) -> list[Prompt]:
    embeddings: Any = base.model.get_input_embeddings()
    size = min(len(base.tokenizer), int(embeddings.weight.shape[0]))
    ids = (torch.randint(0, size, (length,), generator=generator).tolist() for length in LENGTHS)
    return [Prompt(i, tuple(one), _DRAWN, 1.0, 1.0, (), (i,)) for i, one in enumerate(ids)]


def _learned(
    base: Base, adapters: Adapters, prompts: list[Prompt], drawn: list[Drawn]
) -> torch.Tensor:
    groups = [
        Packed(prompt.agent_index, prompt.prompt_ids, (one.ids,))
        for prompt, one in zip(prompts, drawn, strict=True)
    ]
    with torch.no_grad():
        return torch.cat(completion_logprobs(base, adapters, groups, 1.0)).float().cpu()


def _coded(model: Any) -> bool:
    return any(not weight.is_floating_point() for weight in model.parameters())


def _compare(base: Base, ways: str, one: torch.Tensor, other: torch.Tensor, close: float) -> None:
    apart = float((one - other).abs().max())
    if math.isfinite(apart) and apart <= close:
        return
    raise ConfigError(
        f"the base {base.name} can't be trained here: the log-probability of a token, computed "
        f"{ways}, differs by {apart:.2g} nats (at most {close:g}): such a base has dropout that "
        "stays on, or computes a row by what else is in its batch: choose another base"
    )
