"""Orchestry's trainer in the GPU benchmark: one base, two adapters, one batch."""

from __future__ import annotations

import sys

from benchmarks.peers.gpu_work import Measured, name_of, peak, timed
from benchmarks.peers.reference_work import (
    AGENTS,
    ALPHA,
    RANK,
    RATE,
    TEMPERATURE,
    TOP_P,
    WARM_UP_TOKENS,
    Work,
)
from benchmarks.peers.with_local import learned_from, requests
from orchestry.backends.local.sampler import Sampler
from orchestry.backends.local.trainer import Trainer
from orchestry.core.config import LearnConfig
from orchestry.core.types import Member


def measure(way: str, work: Work) -> Measured:
    """A step of two tokens that is not counted, then the one that is; `nf4`: with a base of 4
    bits; `launched`: without recordings of decoding steps."""
    settings = LearnConfig(
        learning_rate=RATE,
        top_p=TOP_P,
        rank=RANK,
        alpha=ALPHA,
        threads=work.threads,
        quantize="nf4" if way == "nf4" else None,
    )
    team = {name: Member(name, "", work.model, 0, TEMPERATURE) for name in AGENTS}
    made = Trainer(team, settings, 1, 0, lambda text: print(text, file=sys.stderr))
    device, sampler = made.crews[0].base.device, made.crews[0].sampler
    if way == "launched" and isinstance(sampler, Sampler):
        sampler.recorder = None
    for seed, tokens in enumerate((WARM_UP_TOKENS, work.tokens)):
        asked = requests(work, tokens, seed)
        drawn, generate_s = timed(device, lambda asked=asked: made.draw(asked, work.samples))
        batch = learned_from(drawn)
        _, update_s = timed(device, lambda batch=batch: made.learn(batch))
    return Measured(
        device=name_of(device),
        generate_s=generate_s,
        update_s=update_s,
        tokens=sum(one.output_tokens for answers in drawn for one in answers),
        peak_bytes=peak(device),
        prompt_tokens=sum(answers[0].input_tokens for answers in drawn),
    )


if __name__ == "__main__":
    measure(sys.argv[1], Work.load(sys.argv[2])).print()
