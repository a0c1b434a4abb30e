"""How fast this machine draws and learns, from one short draw and one step of the real weights.

Nothing is written but a GGUF file's conversion: the adapters that the step changes are in memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from orchestry.backends.local.batch import Batch, Sample
from orchestry.backends.local.fits import Work
from orchestry.backends.local.memory import release
from orchestry.backends.local.sampler import Drawn, Prompt
from orchestry.backends.local.sizes import on_disk
from orchestry.backends.local.trainer import Crew, Trainer
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member
from orchestry.models.gguf import gguf_named

_TOKENS_CPU, _TOKENS_GPU = 8, 32
"""Drawn per answer."""
_PROMPT_CPU, _LEARNED_CPU = 128, 4
"""Of prompts, and of learning, a small batch tells a CPU's pace."""
_BRIEF, _ROWS_CPU = 16, 64
"""Of drawing it does not: weights are read for all rows of a step at once."""
_COMMON = 1000
"""Prompts are random ids below this."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per token."""

    device: str
    prompt_s: float
    """Of prompts that are computed for drawing."""
    drawn_s: float
    """Drawn, at as many rows as the run has on a GPU."""
    learned_s: float
    """Learned from, prompts among them; 0 for a run that doesn't learn."""


def measure(team: Mapping[str, Member], learn: LearnConfig, work: Work, seed: int) -> Pace:
    """Loads the weights, which must be on this machine, draws and learns once; some seconds.

    Raises ConfigError and LearnError as a run would.
    """
    here = {role: replace(one, model=_place(one.model)) for role, one in team.items()}
    settings = learn.model_copy(update={"source": None, "vllm_url": None})
    trainer = Trainer(here, settings, 1, seed, lambda text: None)
    on_gpu = trainer.crews[0].base.device.type == "cuda"
    drawn = work
    if not on_gpu:
        drawn = replace(work, prompt=min(work.prompt, _BRIEF), rows=min(work.rows, _ROWS_CPU))
        least = min(work.prompt, _PROMPT_CPU)
        work = replace(work, prompt=least, rows=_LEARNED_CPU, samples=min(2, work.samples))
    tokens = _TOKENS_GPU if on_gpu else _TOKENS_CPU
    crews = range(len(trainer.crews))
    found = [_pace(trainer, number, work, drawn, tokens, learn.enabled) for number in crews]
    prompt_s, drawn_s, learned_s = (fmean(each) for each in zip(*found, strict=True))
    del trainer
    release()  # a run that follows loads the weights anew
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    return Pace(name, prompt_s, drawn_s, learned_s)


def _place(model: str) -> str:
    """Its folder, so that no hub is asked; a GGUF file's name stays."""
    folder = on_disk(model)
    return model if folder is None or gguf_named(model) else str(folder)


def _pace(
    trainer: Trainer, number: int, work: Work, drawing: Work, tokens: int, learns: bool
) -> tuple[float, float, float]:
    """The three figures of one crew; `drawing` is what tells how fast it draws."""
    crew = trainer.crews[number]
    prompts, many = _prompts(crew, work), _prompts(crew, drawing)

    def draw(longest: int, asked: Sequence[Prompt]) -> list[list[Drawn]]:
        short = [replace(one, max_tokens=longest) for one in asked]
        return trainer.answer(number, short, len(asked[0].seeds))

    draw(2, [replace(prompts[0], prompt_ids=prompts[0].prompt_ids[:8])])  # what is made once
    _, prompt_s = _timed(crew, lambda: draw(1, prompts))
    _, first_s = _timed(crew, lambda: draw(1, many))
    drawn, all_s = _timed(crew, lambda: draw(1 + tokens, many))
    more = sum(len(one.ids) - 1 for answers in drawn for one in answers)
    computed = sum(len(one.prompt_ids) for one in prompts)
    drawn_s = max(0.0, all_s - first_s) / max(1, more)
    if not learns:
        return prompt_s / computed, drawn_s, 0.0
    batch = _batch(crew, prompts, draw(1 + tokens, prompts))
    _, step_s = _timed(crew, lambda: trainer.learn(batch))
    learned = computed + sum(len(one.ids) for one in batch.samples)
    return prompt_s / computed, drawn_s, step_s / learned


def _prompts(crew: Crew, work: Work) -> list[Prompt]:
    """Random ones, of all agents in turn."""
    drawn = random.Random(0)
    vocabulary = min(_COMMON, int(crew.base.model.config.vocab_size))
    length = min(work.prompt, crew.base.context // 2)
    return [
        Prompt(
            agent_index=place % len(crew.roles),
            prompt_ids=tuple(drawn.randrange(vocabulary) for _ in range(length)),
            max_tokens=1,
            temperature=1.0,
            top_p=1.0,
            stop=(),
            seeds=tuple(range(work.samples)),
        )
        for place in range(max(1, work.rows // work.samples))
    ]


def _batch(crew: Crew, prompts: Sequence[Prompt], drawn: Sequence[Sequence[Drawn]]) -> Batch:
    """One group a prompt, good and bad answers in turn."""
    samples = [
        Sample(
            agent=crew.roles[prompt.agent_index],
            prompt_ids=prompt.prompt_ids,
            ids=one.ids,
            logprobs=one.logprobs,
            advantage=0.5 if place % 2 else -0.5,
            group=group,
        )
        for group, (prompt, answers) in enumerate(zip(prompts, drawn, strict=True))
        for place, one in enumerate(answers)
    ]
    return Batch(tuple(samples), dict.fromkeys(crew.roles, len(samples)))


def _timed(crew: Crew, work: Callable[[], Any]) -> tuple[Any, float]:
    """What it comes to, and seconds until the device has done all of it."""
    begun = time.perf_counter()
    found = work()
    if crew.base.device.type == "cuda":
        torch.cuda.synchronize(crew.base.device)
    return found, time.perf_counter() - begun
