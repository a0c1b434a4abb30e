"""The agents of one base model: they draw with it, and each has an adapter of its own on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.base import Base, load_base
from orchestry.backends.local.compat import TEMPERATURE, as_comlrl
from orchestry.backends.local.finite import explained
from orchestry.backends.local.groups import Batch
from orchestry.backends.local.logprobs import Packed, completion_logprobs, micro_batches
from orchestry.backends.local.magrpo import policy_loss
from orchestry.backends.local.memory import fitting
from orchestry.backends.local.samples import Sample
from orchestry.backends.local.sampling import Beat, Drawn, Prompt, Sampler, still
from orchestry.backends.local.vllm import VllmSampler
from orchestry.core.errors import ConfigError, LearnError, PromptTooLong
from orchestry.core.learn_config import LearnConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Request, Tokens

ON_A_GPU, ON_A_CPU = 4096, 1024
"""Tokens of a micro-batch."""
BARE = -1
"""The row of a batch that wears no adapter: the reference policy."""
Answer = Callable[[Sequence[Prompt], int], list[list[Drawn]]]
"""Draws `n` answers a prompt, in order; see Sampler.draw."""


@dataclass(frozen=True, slots=True)
class Part:
    """One micro-batch of one agent: its share of the loss, and its actions' log-probabilities."""

    loss: torch.Tensor
    logprobs: tuple[torch.Tensor, ...]
    """(T,) an action, without gradient."""


class Crew:
    """One copy of a base's weights with an adapter an agent."""

    def __init__(
        self,
        model: str,
        temperatures: Mapping[str, float],
        settings: LearnConfig,
        seed: int,
        warn: Callable[[str], None],
        beat: Beat = still,
    ) -> None:
        """`temperatures`, by agent: at which its answers are drawn, and are learned from."""
        self.base = load_base(model, settings.dtype, settings.quantize, settings.device)
        self.roles = tuple(temperatures)
        on_gpu = self.base.device.type == "cuda"
        self.micro_tokens = settings.micro_tokens or (ON_A_GPU if on_gpu else ON_A_CPU)
        with fitting(f"the adapters on {model}"):
            self.adapters = Adapters(
                self.base,
                self.roles,
                rank=settings.rank,
                alpha=settings.alpha,
                dropout=settings.dropout,
                seed=derive(seed, "adapters"),
                shared=settings.shared,
            )
        if settings.gradient_checkpointing:
            _checkpoint_layers(self.base)
        self._sampler: Sampler | VllmSampler = (
            VllmSampler(
                self.base,
                self.adapters,
                settings.vllm_url,
                micro_tokens=self.micro_tokens,
                warn=warn,
            )
            if settings.vllm_url
            else Sampler(self.base, self.adapters, warn=warn, beat=beat)
        )
        self.answer: Answer = self._sampler.draw
        self._fitted = False
        """Whether any prompt left room for its answer so far: else something is set wrong."""
        self._temperatures, self._settings, self._warn = temperatures, settings, warn

    def publish(self, folder: Path) -> None:
        """Says where the adapters that draw from now on are saved: a server reads them there."""
        if isinstance(self._sampler, VllmSampler):
            self._sampler.publish(folder)

    def draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` answers a request in one batch; sample j of a request by its own seed.

        A prompt that leaves no room for its answer is answered by nothing, and the user told;
        raises PromptTooLong where none has fitted yet.
        """
        prompts = self._prompts(requests, n)
        with explained([self]):
            drawn = iter(self.answer([prompt for prompt in prompts if prompt], n))
        return [
            [self._completion(prompt, sample) for sample in next(drawn)]
            if prompt
            else [Completion(text="", model=self.base.name, stop="too_long")] * n
            for prompt in prompts
        ]

    def _prompts(self, requests: Sequence[Request], n: int) -> list[Prompt | None]:
        found, errors = list[Prompt | None](), list[PromptTooLong]()
        for request in requests:
            try:
                found.append(self._prompt(request, n))
            except PromptTooLong as error:
                found.append(None)
                errors.append(error)
        self._fitted |= len(errors) < len(requests)
        if errors and not self._fitted:
            raise errors[0]
        if errors:
            self._warn(
                f"answers to {len(errors)} of {len(requests)} prompts are empty: {errors[0]}"
            )
        return found

    def _prompt(self, request: Request, n: int) -> Prompt:
        return Prompt(
            agent_index=self.roles.index(request.agent),
            prompt_ids=self.base.render(request.messages, request.max_tokens),
            max_tokens=request.max_tokens,
            temperature=self._temperatures[request.agent],
            top_p=self._settings.top_p,
            stop=request.stop,
            seeds=tuple(derive(request.seed, index) for index in range(n)),
        )

    def _completion(self, prompt: Prompt, drawn: Drawn) -> Completion:
        return Completion(
            text=drawn.text,
            model=self.base.name,
            input_tokens=len(prompt.prompt_ids),
            output_tokens=len(drawn.ids),
            stop=drawn.stop,
            tokens=Tokens(prompt_ids=prompt.prompt_ids, ids=drawn.ids, logprobs=drawn.logprobs),
        )

    def parts(
        self, batch: Batch, micro_tokens: int, olds: Iterator[torch.Tensor] | None
    ) -> Iterator[Part]:
        """The batch in micro-batches, whose losses add up to the loss of equation 2.

        `olds`: what an earlier pass over this batch gave, action after action; with them the loss
        is clipped (`learn.clip`).
        """
        for index, role in enumerate(self.roles):
            packed, advantages = _packed(index, [s for s in batch.samples if s.agent == role])
            if self._settings.comlrl_compat:
                pad_id: Any = self.base.tokenizer.pad_token_id
                packed, advantages = as_comlrl(packed, advantages, pad_id)
            left = iter(advantages)
            for micro in micro_batches(packed, micro_tokens):
                logprobs = self._logprobs(micro, role)
                loss = policy_loss(
                    logprobs,
                    [next(left) for _ in logprobs],
                    reduce=self._settings.reduce,
                    actions=batch.actions[role],
                    clip=self._settings.clip if olds else None,
                    old_logprobs=[next(olds) for _ in logprobs] if olds else None,
                    kl=self._settings.kl,
                    reference_logprobs=self._reference(micro, role) if self._settings.kl else None,
                )
                yield Part(loss, tuple(each.detach() for each in logprobs))

    def _logprobs(self, micro: Sequence[Packed], role: str) -> list[torch.Tensor]:
        compat = self._settings.comlrl_compat
        temperature = TEMPERATURE if compat else self._temperatures[role]
        return completion_logprobs(self.base, self.adapters, micro, temperature)

    @torch.no_grad()
    def _reference(self, micro: Sequence[Packed], role: str) -> list[torch.Tensor]:
        """Of the base without adapter, which the team set out from."""
        return self._logprobs([replace(group, agent_index=BARE) for group in micro], role)


def _checkpoint_layers(base: Base) -> None:
    model: Any = base.model  # whose methods transformers leaves untyped
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"learn.gradient_checkpointing: {base.name} has no layers that can be computed again: "
            "set it false, or choose another base"
        )
    model.activation_checkpointing_enable()


def _packed(index: int, samples: Sequence[Sample]) -> tuple[list[Packed], list[float]]:
    """One agent's actions by history, and their advantages in the same order."""
    groups: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if not sample.ids:
            raise LearnError(f"an answer of {sample.agent} has no tokens: nothing to learn from")
        groups[sample.group].append(sample)
    packed = [
        Packed(index, group[0].prompt_ids, tuple(sample.ids for sample in group))
        for group in groups.values()
    ]
    return packed, [sample.advantage for group in groups.values() for sample in group]
