"""Whether a base learns from the policy that draws: found on any family by doing both once.

Two prompts of unequal lengths are drawn in one batch, each with an adapter of its own, then
computed as a row alone, and as learning computes them, in train mode, twice. What these must not
differ by: dropout that stays on, positions or experts that depend on the batch, an attention or
logits that learning computes otherwise. A base that fails is refused before anything is drawn or
paid. A base that passes is not computed again by the same code and versions.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.memory import out_of_memory
from orchestry.backends.local.model import Base, base_digest
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler
from orchestry.backends.local.targets import ALL_LINEAR, all_linear_layers, linear_layers
from orchestry.core.digests import folder_digest, remembered
from orchestry.core.errors import ConfigError, NotFiniteError, OrchestryError
from orchestry.core.learning import LearnConfig

LENGTHS = (3, 13)
"""Tokens of the two prompts."""
_DRAWN = 4
_CLOSE = 2e-3
"""Nats between two computations of a token in float32."""
_CLOSE_HALF = 0.2
"""The same in 16, 8 or 4 bits, on average over the tokens: these round other shapes otherwise."""
_NOISE = 0.005
"""Sd of what is added to the adapters' weights, so that each agent's changes the logits. With 0.02
they were as large as the base's own, and a base of 1.5B in bfloat16 was 1 nat apart by its
rounding alone."""


def check_base(base: Base, settings: LearnConfig, warn: Callable[[str], None]) -> None:
    """Tells `warn` how this base is used otherwise than others are. Raises ConfigError, with the
    reason, for one that can't be used so."""
    with _refusing(base):
        layers = linear_layers(base)
    if settings.method == "lora" and not layers:
        raise ConfigError(
            f"the base {base.name} has no linear layer that can get an adapter: set "
            "learn.method=full, or choose another base"
        )
    _check_once(base, settings.enabled)
    if base.form.folded:
        warn(
            f"the chat template of {base.name} knows no system message: its text stands at the "
            "head of the first user's message"
        )
    if (given := int(base.model.config.max_position_embeddings)) > base.context:
        warn(
            f"prompt and answer have at most {base.context:,} tokens together of the {given:,} of "
            f"{base.name}: beyond these it attends within a window, or by the rest of its batch"
        )
    left = sorted(all_linear_layers(base) - layers)
    if settings.targets == ALL_LINEAR and left:
        warn(
            f"learn.targets=all-linear leaves out {', '.join(left)} of {base.name}: they meet the "
            "tokens of all rows mixed, or peft would load their adapters as another layer's"
        )


def _check_once(base: Base, learns: bool) -> None:
    """As check_learnable, at the first load of these weights by this code on this machine."""

    def found() -> str:
        check_learnable(base, learns)
        return "learnable" if learns else "drawable"

    digest = base_digest(base.name)
    if digest is None:  # a hub's model that is not in the hub's cache
        found()
        return
    code = folder_digest(Path(__file__).parent, Path(__file__).parent.glob("*.py"))
    versions = (version(name) for name in ("torch", "transformers"))
    kind = (base.model.dtype, _coded(base.model), base.device.type, learns)
    remembered("checked", (digest, *kind, code, *versions, platform.machine()), found)


def check_learnable(base: Base, learns: bool = True) -> None:
    """Raises ConfigError, with the reason, for a base that draws otherwise than it computes a row
    alone or, if it `learns`, whose learned policy is not the drawn one."""
    model: Any = base.model
    training = model.training
    with _refusing(base):
        adapters = Adapters(
            base, ("one", "two"), rank=2, dropout=0.0, targets=ALL_LINEAR, beside=True
        )
        try:
            _check(base, adapters, learns)
        except NotFiniteError:
            return  # the weights are damaged, which the first draw says with the weight's name
        finally:
            adapters.detach()
            model.train(training)


@contextmanager
def _refusing(base: Base) -> Iterator[None]:
    """Whatever a family's code may raise becomes a ConfigError; memory that runs out stays."""
    try:
        yield
    except OrchestryError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ConfigError(
            f"the base {base.name} can't be used here: drawing and learning from two prompts "
            f"failed ({type(error).__name__}: {' '.join(str(error).split())[:200]}): choose "
            "another base"
        ) from error


def _check(base: Base, adapters: Adapters, learns: bool) -> None:
    model: Any = base.model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in adapters.parameters():
            weight.add_((torch.randn(weight.shape, generator=generator) * _NOISE).to(weight))
    prompts = _prompts(base, generator)
    drawn = Sampler(base, adapters).draw(prompts, 2)
    half = model.dtype != torch.float32 or _coded(model)
    alone = _alone(base, adapters, prompts, drawn)
    served = torch.tensor([value for one, _ in drawn for value in one.logprobs])
    _compare(base, "in a batch and in a row alone", served, alone, half)
    if learns:
        model.train()
        first, again = (_learned(base, adapters, prompts, drawn) for _ in range(2))
        served = torch.tensor([value for two in drawn for one in two for value in one.logprobs])
        _compare(base, "twice the same way, in train mode", first, again, False)
        _compare(base, "as it was drawn and as it is learned from", served, first, half)


def _prompts(base: Base, generator: torch.Generator) -> list[Prompt]:
    embeddings: Any = base.model.get_input_embeddings()
    size = min(len(base.tokenizer), int(embeddings.weight.shape[0]))
    barred = {*base.form.control_ids, base.tokenizer.pad_token_id}  # some families mask the latter
    known = [token for token in range(size) if token not in barred]
    picked = (torch.randint(len(known), (n,), generator=generator).tolist() for n in LENGTHS)
    ids = [tuple(known[place] for place in one) for one in picked]
    return [Prompt(i, one, _DRAWN, 1.0, 1.0, (), (i, i + 2)) for i, one in enumerate(ids)]


@torch.no_grad()
def _alone(
    base: Base, adapters: Adapters, prompts: list[Prompt], drawn: list[list[Drawn]]
) -> torch.Tensor:
    """Each prompt's first answer, as transformers computes one row: without our masks, positions
    and caches."""
    model: Any = base.model
    found = list[torch.Tensor]()
    for prompt, (one, _) in zip(prompts, drawn, strict=True):
        row = torch.tensor([[*prompt.prompt_ids, *one.ids]], device=model.device)
        with adapters.rows([prompt.agent_index]):
            logits = model(input_ids=row, use_cache=False).logits[0].float()
        before = len(prompt.prompt_ids)
        logprobs = logits[before - 1 : -1].log_softmax(-1)
        found.append(logprobs.gather(-1, row[0, before:, None]).squeeze(-1))
    return torch.cat(found).cpu()


def _learned(
    base: Base, adapters: Adapters, prompts: list[Prompt], drawn: list[list[Drawn]]
) -> torch.Tensor:
    groups = [
        Packed(prompt.agent_index, prompt.prompt_ids, tuple(one.ids for one in two))
        for prompt, two in zip(prompts, drawn, strict=True)
    ]
    with torch.no_grad():
        return torch.cat(completion_logprobs(base, adapters, groups, 1.0)).float().cpu()


def _coded(model: Any) -> bool:
    return any(not weight.is_floating_point() for weight in model.parameters())


def _compare(base: Base, ways: str, one: torch.Tensor, other: torch.Tensor, half: bool) -> None:
    gaps = (one - other).abs()
    apart, most = (gaps.mean().item(), _CLOSE_HALF) if half else (gaps.max().item(), _CLOSE)
    if math.isfinite(apart) and apart <= most:
        return
    raise ConfigError(
        f"the base {base.name} can't be used here: the log-probability of a token, computed "
        f"{ways}, differs by {apart:.2g} nats{' on average' * half} (at most {most:g}): such a "
        "base has dropout that stays on, sees later tokens, or computes a row by what else is in "
        "its batch: choose another base"
    )
