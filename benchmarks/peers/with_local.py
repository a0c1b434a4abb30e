"""Orchestry's trainer, the steps of the reference benchmark: draw, reward, learn."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Literal

from benchmarks.peers.reference_work import (
    AGENTS,
    ALPHA,
    MICRO_TOKENS,
    RANK,
    RATE,
    TEMPERATURE,
    TOP_P,
    WARM_UP_TOKENS,
    Clock,
    Work,
    peak_bytes,
    report,
    reward,
)
from orchestry.backends.local.batch import Batch, Sample
from orchestry.backends.local.decode import Endings
from orchestry.backends.local.magrpo import group_advantages
from orchestry.backends.local.trainer import Trainer
from orchestry.core.config import LearnConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Member, Message, Request


def trainer(
    model: str, threads: int, compat: bool = True, dtype: Literal["float32", "bfloat16"] = "float32"
) -> Trainer:
    """With the settings that the reference has too, and its loss."""
    settings = LearnConfig(
        dtype=dtype,
        comlrl_compat=compat,
        rewards="turns",
        device="cpu",
        learning_rate=RATE,
        top_p=TOP_P,
        rank=RANK,
        alpha=ALPHA,
        threads=threads,
        micro_tokens=MICRO_TOKENS if compat else None,
    )
    team = {name: Member(name, "", model, 0, TEMPERATURE) for name in AGENTS}
    made = Trainer(team, settings, 1, 0, print)
    for crew in made.crews:  # a template may write an end of its own, which could be drawn
        crew.sampler._endings = Endings(crew.base.tokenizer, ())
    return made


def requests(work: Work, tokens: int, seed: int) -> list[Request]:
    return [
        Request(
            agent=name,
            purpose="act",
            model=work.model,
            messages=(Message(role="system", content=system), Message(role="user", content=user)),
            max_tokens=tokens,
            temperature=TEMPERATURE,
            seed=derive(seed, place),
        )
        for place, problem in enumerate(work.problems)
        for name, (system, user) in zip(AGENTS, problem, strict=True)
    ]


def learned_from(drawn: list[list[Completion]]) -> Batch:
    """A group per problem and agent; an action's return is its joint action's reward."""
    samples = list[Sample]()
    for group, answers in enumerate(drawn):
        first = group - group % len(AGENTS)
        team = zip(*drawn[first : first + len(AGENTS)], strict=True)
        worth = group_advantages(
            [reward(*(one.text for one in joint)) for joint in team], normalise=True
        )
        samples += [
            _sample(AGENTS[group % len(AGENTS)], group, answer, advantage)
            for answer, advantage in zip(answers, worth, strict=True)
        ]
    return Batch(tuple(samples), dict.fromkeys(AGENTS, len(samples) // len(AGENTS)))


def _sample(agent: str, group: int, answer: Completion, advantage: float) -> Sample:
    tokens = answer.tokens
    assert tokens is not None
    return Sample(agent, tokens.prompt_ids, tokens.ids, tokens.logprobs, advantage, group)


def step(made: Trainer, clock: Clock, work: Work, tokens: int, seed: int) -> list[int]:
    """One step; the prompts' lengths in the order of the requests."""
    with clock.spent("generate"):
        drawn = made.draw(requests(work, tokens, seed), work.samples)
    batch = learned_from(drawn)
    clock.tokens += sum(answer.output_tokens for answers in drawn for answer in answers)
    with clock.spent("update"):
        made.learn(batch)
    clock.stop()
    return [answers[0].input_tokens for answers in drawn]


def measure(work: Work) -> None:
    """A step of two tokens for one problem that is not counted, then the one that is."""
    imports_bytes = peak_bytes()
    made = trainer(work.model, work.threads, compat=not work.own, dtype=work.dtype)
    first = replace(work, problems=work.problems[:1], tokens=WARM_UP_TOKENS)
    for seed, one in enumerate((first, work)):
        clock = Clock()
        clock.start()
        lengths = step(made, clock, one, one.tokens, seed)
    report(clock, imports_bytes, lengths)


def main() -> None:
    """`measure WORK`, for a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("measure",))
    parser.add_argument("path")
    measure(Work.load(parser.parse_args().path))


if __name__ == "__main__":
    main()
