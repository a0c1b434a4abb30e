"""Two agents on a tiny base, with adapters that differ as much as trained ones do."""

from __future__ import annotations

from typing import Any

import torch

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.model import Base
from tests.backends.local.tiny import Kind, tiny_model, tiny_tokenizer


def team(
    kind: Kind = "llama",
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    device: str = "cpu",
) -> tuple[Base, Adapters]:
    """A base, and adapters of the agents 0 and 1 on it whose B is no longer zero."""
    model: Any = tiny_model(kind)
    model.to(device, dtype)
    if dtype == torch.float64:
        _exact_norms(model)
    base = Base(model, tiny_tokenizer(), "tiny")
    adapters = Adapters(base, ["helper", "main"], rank=4, dropout=dropout, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in adapters.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.add_(noise.to(weight), alpha=0.1)
    return base, adapters


def _exact_norms(model: torch.nn.Module) -> None:
    """transformers' norms round to float32 whatever the model's dtype; torch's own do not."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            exact = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon)
            exact.weight = module.weight
            model.set_submodule(name, exact)


def some_ids(length: int, seed: int = 0) -> tuple[int, ...]:
    """Ids of ordinary tokens."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 259, (length,), generator=generator).tolist())


def plain_logits(base: Base, adapters: Adapters, agent: int, ids: tuple[int, ...]) -> torch.Tensor:
    """(tokens, V): one row through the whole model, no mask, no cache."""
    with adapters.rows([agent]):
        logits: torch.Tensor = base.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def plain_logprobs(
    base: Base,
    adapters: Adapters,
    agent: int,
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
    temperature: float,
) -> torch.Tensor:
    """(T,): log softmax(logits / temperature) of each of `ids` behind the prompt."""
    logits = plain_logits(base, adapters, agent, prompt + ids)[len(prompt) - 1 : -1]
    chosen = torch.tensor(ids)[:, None]
    return (logits / temperature).log_softmax(-1).gather(-1, chosen).squeeze(-1)
