"""Memory that backend local needs: the estimate of `orchestry doctor` beside what was measured.

A team of two on the embedded model draws and learns once per case, in a process of its own, on a
CPU. Resident memory above that of the process before the weights stands in for a GPU's. Beside it:
what the section on a GPU measured, where the same estimate has to hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import page
from orchestry.backends.local.fits import Crew, Work, memory
from orchestry.backends.local.sizes import KNOWN, shape_of
from orchestry.core.learning import LearnConfig
from orchestry.report.text import table

ROLES = ("helper", "main")
GOAL = 0.25
"""Share of the measured memory that the estimate may be off."""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "0"}
"""What is freed goes back to the system at once, so that resident memory is what is held."""
GPU_MODEL = "Qwen/Qwen2.5-Coder-1.5B-Instruct"
GPU_WAYS: dict[str, dict[str, Any]] = {
    "Orchestry: one base": {},
    "the same, each step's kernels launched one by one": {},
    "as the first, with learn.quantize=nf4": {"quantize": "nf4"},
}
"""How rows of that section begin, and their settings."""


@dataclass(frozen=True, slots=True)
class Case:
    """Settings of `learn`, and what is drawn and learned from."""

    name: str
    draws: Work
    learns: Work
    learn: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> LearnConfig:
        """With what every case has."""
        return LearnConfig.model_validate({"device": "cpu", "threads": 1, **self.learn})


def work(prompt: int, answer: int, samples: int, groups: int = 1) -> Work:
    """Of a team of two that answers at once."""
    return Work(prompt, answer, samples * groups * len(ROLES), samples, groups)


FEW, PLAIN, LONG = work(128, 8, 4), work(128, 64, 4), work(128, 256, 3)
CASES = (
    Case("as shipped", FEW, PLAIN),
    Case("long answers", FEW, LONG),
    Case("the same, `gradient_checkpointing=true`", FEW, LONG, {"gradient_checkpointing": True}),
    Case("the same, `micro_tokens=256`", FEW, work(128, 256, 2), {"micro_tokens": 256}),
    Case("long prompts", work(700, 8, 4), work(700, 32, 4)),
    Case("256 answers at once", work(64, 4, 32, 4), PLAIN),
    Case("`targets=all-linear`, `rank=64`", FEW, PLAIN, {"targets": "all-linear", "rank": 64}),
    Case("`dtype=bfloat16`", FEW, PLAIN, {"dtype": "bfloat16"}),
    Case("`quantize=nf4`", FEW, PLAIN, {"quantize": "nf4"}),
    Case("`method=full`, `shared=true`", FEW, PLAIN, {"method": "full", "shared": True}),
)


def estimated(case: Case) -> dict[str, float]:
    """Bytes held while drawing and while learning, as doctor and the dry run have them."""
    crew = Crew(shape_of("embedded"), len(ROLES))
    drawn, learned = (
        memory([crew], case.settings, [one], on_gpu=False) for one in (case.draws, case.learns)
    )
    held = drawn.weights + drawn.trained
    return {"drawing": held + drawn.drawing, "learning": held + learned.learning}


def measure(case: Case) -> dict[str, float]:
    """In this process: most bytes above those before the weights, while drawing and learning. What
    is learned from is made up, which takes as much memory as what was drawn."""
    import random

    import torch

    from benchmarks.guarantees.prefill import forget_peak
    from benchmarks.peers.reference_work import peak_bytes
    from orchestry.backends.local.batch import Batch, Sample
    from orchestry.backends.local.decode import Endings
    from orchestry.backends.local.model import require_local
    from orchestry.backends.local.sampler import Prompt, Sampler
    from orchestry.backends.local.trainer import Trainer
    from orchestry.core.types import Member

    require_local()
    torch.ones(64, 64) @ torch.ones(64, 64)
    forget_peak()
    before, ids = peak_bytes(), random.Random(0)
    team = {role: Member(role, "", "embedded", 1, 1.0) for role in ROLES}
    made = Trainer(team, case.settings, 1, 0, print)
    (crew,) = made.crews
    assert isinstance(crew.sampler, Sampler)
    crew.sampler._endings = Endings(crew.base.tokenizer, ())  # every answer at its longest

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(ids.randrange(1000) for _ in range(count))

    def draw(asked: Work) -> None:
        seeds = tuple(range(asked.samples))
        prompts = [
            Prompt(agent, tokens(asked.prompt), asked.answer, 1.0, 0.95, (), seeds)
            for agent in range(len(ROLES))
            for _ in range(asked.groups)
        ]
        made.answer(0, prompts, asked.samples)

    def learn(asked: Work, roles: Sequence[str] = ROLES[:1]) -> None:
        history, logprobs = tokens(asked.prompt), (-1.0,) * asked.answer
        samples = [
            Sample(role, history, tokens(asked.answer), logprobs, 0.5 - place % 2, group)
            for group, role in enumerate(roles)
            for place in range(asked.samples)
        ]
        made.learn(Batch(tuple(samples), dict.fromkeys(ROLES, asked.samples)))

    def peak(do: Callable[[Work], None], asked: Work) -> float:
        forget_peak()
        do(asked)
        return float(peak_bytes() - before)

    draw(work(8, 2, 2))
    learn(work(8, 4, 2), ROLES)  # what is made once: the optimizer's state
    return {"drawing": peak(draw, case.draws), "learning": peak(learn, case.learns)}


def play(number: int) -> dict[str, float]:
    """One case, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.guarantees.memory", "--child", str(number)],
        cwd=page.ROOT,
        env={**os.environ, **MALLOC, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{CASES[number].name} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(case: Case, found: Mapping[str, float]) -> tuple[list[str], float]:
    """A case's cells, and how far the estimate of the larger of both peaks is off."""
    told = estimated(case)
    pairs = [f"{told[what] / 1e9:.2f} / {found[what] / 1e9:.2f}" for what in found]
    off = max(told.values()) / max(found.values()) - 1
    return [
        case.name,
        _said(case.draws),
        pairs[0],
        _said(case.learns),
        pairs[1],
        f"{off:+.0%}",
    ], off


def _said(asked: Work) -> str:
    return f"{asked.prompt} + {asked.rows // len(ROLES)} x {asked.answer}"


def on_gpus() -> list[list[str]]:
    """The estimate beside the rows of the section on a GPU, if the page has it."""
    text, rows = page.read().get("gpu", ""), list[list[str]]()
    given = re.search(
        r"(\d+) agents, (\d+) problems.*?\((\d+) tokens a prompt\), (\d+) answers of (\d+)", text
    )
    for line in text.splitlines() if given else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        way = next((way for way in GPU_WAYS if cells[0].startswith(way)), None)
        if given and way:
            agents, problems, prompt, samples, answer = map(int, given.groups())
            asked = Work(prompt, answer, agents * problems * samples, samples, problems)
            learn = LearnConfig.model_validate(GPU_WAYS[way])
            told = memory([Crew(KNOWN[GPU_MODEL], agents)], learn, [asked], on_gpu=True)
            seen = float(cells[-1].strip("*").partition("*")[0]) * 2**30
            off = told.held / seen - 1
            rows.append([cells[0], f"{told.held / 1e9:.2f} / {seen / 1e9:.2f}", f"**{off:+.0%}**"])
    return rows


def report() -> str:
    """The section's text."""
    import torch

    rows, offs = list[list[str]](), dict[str, float]()
    for number, case in enumerate(CASES):
        found = play(number)
        print(f"{case.name}: {found}, {estimated(case)}", file=sys.stderr)
        cells, offs[case.name] = row(case, found)
        rows.append(cells)
    missed = [f"{name} ({off:+.0%})" for name, off in offs.items() if abs(off) > GOAL]
    gpus, head = on_gpus(), ["settings", "GB: estimate / measured", "estimate off by"]
    beside = (
        f"\n\nThe same estimate beside {page.link('gpu')}, bytes that torch allocated:\n\n"
        f"{table(head, gpus)}"
        if gpus
        else ""
    )
    columns = ["drawn", "drawing, GB", "learned from", "learning, GB", "estimate off by"]
    return (
        "A team of two on the embedded model (135M), LoRA of rank 16 on q, k, v and o unless told "
        f"otherwise, **CPU**, torch {torch.__version__}, one thread. Drawn is what each agent "
        "answers, learned from what one of them learns from: tokens of a prompt, and of its "
        "answers. Pairs are estimate / measured, in units of 1e9 bytes: resident memory above that "
        "of the process before the weights, at most, in a draw and in an update. The last column "
        "compares the larger of both.\n\n"
        f"{table(['settings', *columns], rows)}\n\n"
        f"- Within {GOAL:.0%}: {len(offs) - len(missed)} of {len(offs)}"
        f"{'; off by more: ' + ', '.join(missed) if missed else ''}.\n"
        "- A quantized base on a CPU keeps the file of the whole weights mapped (resident, but the "
        "system may take it back); a GPU does not hold it, and the estimate leaves it out."
        f"{beside}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    if args.child is not None:
        print(json.dumps(measure(CASES[args.child])))
        return
    text = report()
    print(text)
    if args.write:
        page.write("memory", " ".join(["python -m benchmarks.guarantees.memory", *given]), text)


if __name__ == "__main__":
    main()
