"""Full-weight training: each agent has a whole copy of the base, all of whose weights learn.

The copy stands where a crew of LoRA agents has its adapters, so drawing, learning and saving are
the same code. A saved copy is an ordinary folder of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from orchestry.backends.local.adapters import SHARED, Adapters, folder_of
from orchestry.backends.local.model import Base, base_digest, quiet
from orchestry.backends.local.sizes import ATTENTION
from orchestry.backends.local.weights import FULL
from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, StoreError, reason
from orchestry.core.files import to_json
from orchestry.core.learning import LearnConfig
from orchestry.core.machine import memory_gb
from orchestry.core.seeds import derive

WEIGHTS = "model.safetensors"
_COPIES = 4
"""Numbers kept per weight: itself, its gradient, and AdamW's two moments."""


class FullWeights(Adapters):
    """One agent's copy of a base, or the copy that all agents share, in the place of adapters.

    There is no bare base any more: nothing is computed from it (no KL), and nothing merged.
    """

    def __init__(self, base: Base, agents: Sequence[str], *, shared: bool = False) -> None:
        """Makes all weights of `base` trainable; several agents must share them."""
        self.base, self.agents, self.shared = base, tuple(agents), shared
        self._folder = SHARED if shared else folder_of(self.agents[0])
        base.model.requires_grad_(True)
        self._weights = [weight for weight in base.model.parameters() if weight.requires_grad]

    @property
    def folders(self) -> tuple[str, ...]:
        """Each agent's folder in a checkpoint."""
        return (self._folder,) * len(self.agents)

    def parameters(self, agent: int | None = None) -> list[nn.Parameter]:
        """All weights; the same for each agent."""
        return list(self._weights)

    def rows(self, index_R: int | Sequence[int] | Tensor) -> AbstractContextManager[None]:
        """See Adapters; the weights are in use at any time."""
        if torch.is_grad_enabled() and self.base.model.training:
            for module in self.base.model.modules():
                if getattr(module, "gradient_checkpointing", False):
                    wrapped: Any = partial(checkpoint, use_reentrant=False)
                    module._gradient_checkpointing_func = wrapped
        return nullcontext()

    def reseed(self, seed: int) -> None:
        """Nothing is random: there is no dropout."""

    def merged(self, agent: int) -> dict[str, Tensor]:
        """The weights as they are."""
        state: dict[str, Tensor] = self.base.model.state_dict()
        return state

    def save(self, folder: Path) -> None:
        """One folder that transformers loads, tokenizer included."""
        own = folder / self._folder
        with quiet():
            self.base.model.save_pretrained(own, max_shard_size="1TB")  # one file, for any size
        self.base.tokenizer.save_pretrained(own)
        facts = {
            "name": self.base.name,
            "base": base_digest(self.base.name),
            WEIGHTS: file_digest(own / WEIGHTS),
        }
        (own / FULL).write_text(to_json(facts), encoding="utf-8")

    def load(self, folder: Path, any_base: bool = False, names: Sequence[str | None] = ()) -> None:
        """Reads what `save` wrote; after an error no weight is changed. `names`: see Adapters.

        Raises StoreError if it can't be read or is damaged, and ConfigError if it is a copy of
        another base (compared by content; not compared with `any_base`) or of another shape.
        """
        (name,) = names or (self._folder,)
        if name is None:
            return
        own = folder / name
        if not (own / FULL).is_file():
            raise StoreError(
                f"{folder} holds no full weights of {name}: name a checkpoint of a team "
                "of the same agents that learned with learn.method=full, or set learn.method=lora"
            )
        state, facts = _read(own)
        ours = base_digest(self.base.name)
        if not any_base and ours and facts.get("base") not in (None, ours):
            raise ConfigError(
                f"the weights in {own} began as another base than {self.base.name} (weights, "
                "tokenizer or config differ): name theirs in provider.model, or start from others"
            )
        self._take(own, state)

    def _take(self, own: Path, state: Mapping[str, Tensor]) -> None:
        mine: dict[str, Tensor] = dict(self.base.model.named_parameters())
        shapes = {name: tuple(weight.shape) for name, weight in mine.items()}
        found = {name: tuple(weight.shape) for name, weight in state.items()}
        if differing := sorted(name for name in shapes if found.get(name) != shapes[name]):
            raise ConfigError(
                f"the weights in {own} do not fit the base {self.base.name}: {differing[0]} is "
                f"{found.get(differing[0], 'absent')}, expected {shapes[differing[0]]}: name the "
                "base that they began as in provider.model"
            )
        with torch.no_grad():
            for name, weight in mine.items():
                weight.copy_(state[name])


def _read(own: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The saved weights and their digests."""
    from safetensors.torch import load_file

    file = own / WEIGHTS
    try:
        facts: dict[str, Any] = json.loads((own / FULL).read_text(encoding="utf-8"))
        sound = facts.get(WEIGHTS) == file_digest(file)
        state: dict[str, Tensor] = load_file(file) if sound else {}
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise _damaged(file, reason(error)) from None
    if not sound:
        raise _damaged(file, "its content is not what was written")
    return state, facts


def _damaged(file: Path, why: str) -> StoreError:
    return StoreError(
        f"the weights {file} can't be read ({why}): restore them from a copy, or take another "
        "checkpoint"
    )


def check_memory(base: Base, copies: int, learns: bool) -> None:
    """Raises ConfigError if `copies` of a base, the first of which is loaded, can't fit into memory
    with what learning needs."""
    size = sum(weight.nbytes for weight in base.model.parameters()) / 1e9
    needed = size * (_COPIES if learns else 1) * copies
    free = memory_gb()
    if base.device.type == "cuda":
        free = torch.cuda.mem_get_info(base.device)[0] / 1e9
    if free is not None and needed > free + size:
        raise ConfigError(
            f"learn.method=full keeps {copies} copies of {base.name}, which take {needed:.3g} GB"
            f"{' with gradients and the two moments of AdamW' if learns else ''}, and this machine "
            f"has {free + size:.3g} GB free: set learn.shared=true for one copy, choose a smaller "
            "base, or learn.method=lora"
        )


def worn(base: Base, agents: Sequence[str], settings: LearnConfig, seed: int) -> Adapters:
    """What agents of one base train: their adapters or, by learn.method, all weights."""
    if settings.method == "full":
        return FullWeights(base, agents, shared=settings.shared)
    return Adapters(
        base,
        agents,
        rank=settings.rank,
        alpha=settings.alpha,
        dropout=settings.dropout,
        targets=settings.targets or ATTENTION,
        rslora=settings.rslora,
        seed=derive(seed, "adapters"),
        shared=settings.shared,
    )
