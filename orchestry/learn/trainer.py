"""A team on the weights of this machine: draws its moves, takes MAGRPO steps, saves and goes on."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestry.errors import LearnError, StoreError, reason
from orchestry.learn.adapters import Adapters
from orchestry.learn.base import load_base
from orchestry.learn.groups import Batch
from orchestry.learn.logprobs import Packed, completion_logprobs, micro_batches
from orchestry.learn.magrpo import policy_loss
from orchestry.learn.optimizer import Step, TeamOptimizer
from orchestry.learn.samples import Sample
from orchestry.learn.sampling import Drawn, Prompt, Sampler
from orchestry.learnconfig import LearnConfig
from orchestry.seeds import derive
from orchestry.types import Completion, Request, Tokens

_OPTIMIZER, _STATE, _PART = "optimizer.pt", "state.json", ".part"


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one update came to."""

    step: Step
    loss: float
    """Of all agents together; its gradient is the point, its size says little."""
    samples: int
    """Actions learned from."""
    skipped: int
    """Actions of zero advantage, which cost nothing."""
    tokens: int
    """Answers' tokens learned from."""

    def figures(self) -> dict[str, Any]:
        """For the journal."""
        return {
            "loss": self.loss,
            "rate": self.step.rate,
            "norms": dict(self.step.norms),
            "samples": self.samples,
            "skipped": self.skipped,
            "tokens": self.tokens,
        }

    def line(self) -> str:
        """For the user."""
        norms = ", ".join(f"{agent} {norm:.2g}" for agent, norm in self.step.norms.items())
        return (
            f"{self.samples} actions learned from and {self.skipped} without variance, "
            f"gradient norms {norms}"
        )


class Trainer:
    """One base, one adapter an agent, one optimizer. Not safe to use from two threads at once."""

    def __init__(
        self, model: str, roles: Sequence[str], settings: LearnConfig, updates: int, seed: int
    ) -> None:
        """`updates`: how many the whole run makes. Raises ConfigError for what can't be loaded."""
        torch.set_num_threads(settings.threads or 1)
        self.base = load_base(model, settings.dtype, settings.quantize, settings.device)
        self.adapters = Adapters(
            self.base,
            roles,
            rank=settings.rank,
            alpha=settings.alpha,
            dropout=settings.dropout,
            seed=derive(seed, "adapters"),
            shared=settings.shared,
        )
        self.optimizer = TeamOptimizer(
            {role: self.adapters.parameters(i) for i, role in enumerate(roles)},
            rate=settings.learning_rate,
            updates=updates,
            max_norm=settings.max_grad_norm,
        )
        self.temperatures: Mapping[str, float] = {}
        """At which each agent's answers were drawn, and are learned from."""
        self._settings, self._roles, self._seed = settings, tuple(roles), seed
        self._sampler = Sampler(self.base, self.adapters)

    def draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` answers a request in one batch; sample j of a request by its own seed.

        Raises PromptTooLong for a prompt that leaves no room for its answer.
        """
        prompts = [self._prompt(request, n) for request in requests]
        return [
            [self._completion(prompt, drawn) for drawn in samples]
            for prompt, samples in zip(prompts, self._sampler.draw(prompts, n), strict=True)
        ]

    def _prompt(self, request: Request, n: int) -> Prompt:
        return Prompt(
            agent_index=self._roles.index(request.agent),
            prompt_ids=self.base.render(request.messages, request.max_tokens),
            max_tokens=request.max_tokens,
            temperature=self.temperatures[request.agent],
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

    def learn(self, batch: Batch) -> Learnt:
        """One step up the gradient of equation 2, each agent's mean over its own actions.

        Raises LearnError, before any weight moves, for numbers that are none.
        """
        self.adapters.reseed(derive(self._seed, "dropout", self.optimizer.update))
        total = 0.0
        self.base.model.train()
        try:
            for loss in self._losses(batch):
                self.optimizer.backward(loss)
                total += loss.item()
        except BaseException:
            self.optimizer.drop()
            raise
        finally:
            self.base.model.train(False)
        return Learnt(
            step=self.optimizer.step(),
            loss=total,
            samples=len(batch.samples),
            skipped=batch.skipped,
            tokens=sum(len(sample.ids) for sample in batch.samples),
        )

    def _losses(self, batch: Batch) -> Iterator[torch.Tensor]:
        """Each micro-batch's part of the loss; they add up to the whole."""
        for index, role in enumerate(self._roles):
            packed, advantages = _packed(index, [s for s in batch.samples if s.agent == role])
            left = iter(advantages)
            for micro in micro_batches(packed, self._settings.micro_tokens):
                logprobs = completion_logprobs(
                    self.base, self.adapters, micro, self.temperatures[role]
                )
                yield policy_loss(
                    logprobs,
                    [next(left) for _ in logprobs],
                    reduce=self._settings.reduce,
                    actions=batch.actions[role],
                )

    def save(self, folder: Path, keep: int) -> None:
        """All that a run needs to go on, whole or not at all; older checkpoints but `keep` go.

        The one before stays even at `keep=1`: until the journal names the new one, a run that is
        killed goes on from there.
        """
        part = folder.with_name(folder.name + _PART)
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            self.adapters.save(part)
            torch.save(self.optimizer.state_dict(), part / _OPTIMIZER)
            state = {"update": self.optimizer.update, "base": self.base.name}
            (part / _STATE).write_text(json.dumps(state), encoding="utf-8")
            if folder.exists():  # left by a process that was killed before it counted
                shutil.rmtree(folder)
            part.replace(folder)
            ours = [path for path in folder.parent.iterdir() if path.name.isdecimal()]
            for old in sorted(ours, key=lambda path: int(path.name))[: -max(2, keep)]:
                shutil.rmtree(old)
        except OSError as error:
            raise StoreError(
                f"the checkpoint {folder} can't be written ({reason(error)}): free space there, "
                "then resume the run"
            ) from None

    def resume(self, folder: Path) -> None:
        """Goes on exactly where the checkpoint was saved."""
        self.start_from(folder)
        try:
            state = torch.load(folder / _OPTIMIZER, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise StoreError(
                f"{folder / _OPTIMIZER} can't be read ({reason(error)}): restore it from a copy"
            ) from None
        self.optimizer.load_state_dict(state)

    def start_from(self, folder: Path) -> None:
        """Takes over a checkpoint's adapters, with a fresh optimizer."""
        self.adapters.load(folder)


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
