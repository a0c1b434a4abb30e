"""Prompts that begin alike: their beginning computed once, beside each prompt computed whole.

    python -m benchmarks.guarantees.beginnings [--rounds N] [--write]

The embedded model's team in Bucket Brigade: each agent draws answers to observations of several
evenings behind its rules, or behind rules and examples, and learns from them. Each way is a process
of its own, on one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.quality.bucket_models import examples
from benchmarks.stats import ranged
from orchestry.core.config import AgentConfig
from orchestry.core.types import Message
from orchestry.report.text import table
from orchestry.task.registry import load_task

WAYS = {"once": "computed once", "whole": "each prompt whole"}
NEVER = 1 << 30
"""Tokens from which a beginning is shared, where none is."""
ROLES = ("agent_0", "agent_1")
MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Case:
    """How much two agents are asked."""

    prompts: int
    """Per agent."""
    taught: bool
    """Whether examples stand in the prompts."""
    model: str = "embedded"

    def said(self) -> str:
        return f"{self.prompts} prompts, {'rules and examples' if self.taught else 'rules'}"


CASES = (Case(4, False), Case(16, False), Case(8, True))


def asked(case: Case) -> dict[str, list[tuple[Message, ...]]]:
    """By agent: the messages of its prompts, of train games' evenings."""
    task: Any = load_task("bucket_brigade")
    shown = examples("default") if case.taught else {}
    evenings = [*islice(_evenings(task), case.prompts)]
    found = dict[str, list[tuple[Message, ...]]]()
    for spec in (one for one in task.agents if one.role in ROLES):
        own = AgentConfig.model_validate(shown.get(spec.role, {})).examples
        system = Message(role="system", content=spec.system_prompt)
        before = (system, *(message for example in own for message in example.messages))
        found[spec.role] = [
            (*before, Message(role="user", content=seen[spec.role])) for seen in evenings
        ]
    return found


def _evenings(task: Any) -> Iterator[dict[str, str]]:
    """What the agents see in train games in which all rest."""
    for problem in task.problems("train"):
        state = task.reset(problem, 0)
        while acting := task.to_act(state):
            yield {role: task.observe(state, role) for role in ROLES}
            state = task.step(state, dict.fromkeys(acting, "house 0, rest"))


def measure(case: Case, way: str, grads: Path) -> dict[str, Any]:
    """In this process: CPU seconds, peak memory and what was drawn; the gradient as a file."""
    import torch

    from benchmarks.guarantees.prefill import forget_peak
    from benchmarks.peers.gpu_work import peak
    from orchestry.backends.local import beginnings
    from orchestry.backends.local.batch import Batch, Sample
    from orchestry.backends.local.sampler import Prompt
    from orchestry.backends.local.trainer import Trainer
    from orchestry.core.learning import LearnConfig
    from orchestry.core.types import Member

    beginnings.LEAST = beginnings.LEAST if way == "once" else NEVER
    settings = LearnConfig.model_validate({"threads": 1, "dtype": "float32"})
    team = {role: Member(role, "", case.model, MAX_TOKENS, 0.8) for role in ROLES}
    (crew,) = Trainer(team, settings, 1, 0, print).crews
    prompts = [
        Prompt(number, crew.base.render(one, MAX_TOKENS), MAX_TOKENS, 0.8, 0.95, (), (place,))
        for number, messages in enumerate(asked(case).values())
        for place, one in enumerate(messages)
    ]
    crew.sampler.draw(prompts[:1], 1)  # what is loaded at first use
    forget_peak()
    before, begun = peak(crew.base.device), time.process_time()
    drawn = [one for [one] in crew.sampler.draw(prompts, 1)]
    drew = time.process_time()
    samples = [
        Sample(ROLES[p.agent_index], p.prompt_ids, d.ids, d.logprobs, (-1.0) ** place, place)
        for place, (p, d) in enumerate(zip(prompts, drawn, strict=True))
    ]
    batch = Batch(tuple(samples), dict.fromkeys(ROLES, case.prompts))
    for part in crew.parts(batch, crew.micro_tokens, None):
        part.loss.backward()  # type: ignore[no-untyped-call]
    learned = time.process_time()
    torch.save([weight.grad for weight in crew.adapters.parameters()], grads)
    return {
        "drawing": drew - begun,
        "learning": learned - drew,
        "bytes": peak(crew.base.device) - before,
        "tokens": len(prompts[0].prompt_ids),
        "answers": [one.ids for one in drawn],
    }


def play(number: int, way: str, grads: Path) -> dict[str, Any]:
    """One way through one case, in a process of its own."""
    child = [sys.executable, "-m", "benchmarks.guarantees.beginnings", "--child", str(number), way]
    done = subprocess.run([*child, str(grads)], cwd=page.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{way} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(number: int, rounds: int, folder: Path) -> list[str]:
    """A case's cells."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, each in found.items():
            each.append(play(number, way, folder / way))
            told = {k: v for k, v in each[-1].items() if k != "answers"}
            print(f"{CASES[number].said()}, {way}: {told}", file=sys.stderr)
    every = [one for each in found.values() for one in each]
    return [
        f"{CASES[number].said()} ({every[0]['tokens']} tokens and up)",
        *(_cell(found, way, "drawing") for way in WAYS),
        *(_cell(found, way, "learning") for way in WAYS),
        *(ranged([one["bytes"] / 2**20 for one in found[way]], ",.0f") for way in WAYS),
        "yes" if all(one["answers"] == every[0]["answers"] for one in every) else "no",
        f"{apart(folder):.1e}",
    ]


def _cell(found: Mapping[str, list[dict[str, Any]]], way: str, what: str) -> str:
    return ranged([one[what] for one in found[way]], ".1f")


def apart(folder: Path) -> float:
    """By how much the two gradients differ, as a share of their norm."""
    import torch

    once, whole = (
        torch.cat([one.flatten().double() for one in torch.load(folder / way) if one is not None])
        for way in WAYS
    )
    return float((once - whole).norm() / whole.norm())


def report(rounds: int) -> str:
    """The section's text."""
    with tempfile.TemporaryDirectory(prefix="beginnings-") as name:
        rows = [row(number, rounds, Path(name)) for number in range(len(CASES))]
    heads = [
        f"{what} {said}"
        for what in ("drawing, s,", "learning, s,", "MiB")
        for said in WAYS.values()
    ]
    return (
        "Two agents of the embedded 135M model in Bucket Brigade, float32, one thread: an answer "
        f"of at most {MAX_TOKENS} tokens to each prompt, then the gradient of them all. CPU "
        f"seconds and peak resident memory beyond the loaded team; medians (and range) of {rounds} "
        "rounds, ways in turn, a process each.\n\n"
        f"{table(['prompts per agent', *heads, 'same tokens', 'gradients differ by'], rows)}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    if args.child:
        number, way, grads = args.child
        print(json.dumps(measure(CASES[int(number)], way, Path(grads))))
        return
    text = report(args.rounds)
    print(text)
    if args.write:
        command = " ".join(["python -m benchmarks.guarantees.beginnings", *given])
        page.write("beginnings", command, text)


if __name__ == "__main__":
    main()
