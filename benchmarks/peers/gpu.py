"""Two agents on one device: answers, an update and memory, beside a full copy of the base an agent.

`--shape 1.5B` has Qwen2.5-Coder-1.5B's architecture with random weights and is for a GPU; where
torch finds none, the CPU serves and the figures say so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.peers.gpu_work import SHAPES, Measured, make
from benchmarks.peers.reference_work import AGENTS, Work, rendered
from benchmarks.stats import ranged
from orchestry.report.text import table

WAYS = {
    "ours": "Orchestry: one base, an adapter an agent, all answers in one batch",
    "launched": "the same, each step's kernels launched one by one, not as a CUDA graph",
    "nf4": "as the first, with learn.quantize=nf4",
    "copies": "a full copy an agent with peft's LoRA, one cached `generate` an agent and problem",
}
TASK = "tldr"


def told(problems: int) -> list[tuple[tuple[str, str], ...]]:
    """What each agent is told of the task's first problems: system prompt and observation."""
    from orchestry import BaseTask
    from orchestry.task.registry import load_task

    task: BaseTask[Any] = load_task(TASK)
    if len(task.problems("train")) < problems:
        raise SystemExit(f"{TASK} has {len(task.problems('train'))} problems, not {problems}")
    specs = [spec for spec in task.agents if spec.role in AGENTS]
    states = [task.reset(problem, 0) for problem in task.problems("train")[:problems]]
    return [
        tuple((spec.system_prompt, task.observe(state, spec.role)) for spec in specs)
        for state in states
    ]


def work(model: Path, problems: int, samples: int, tokens: int, threads: int) -> Work:
    """The first problems of the task, as each agent is told them."""
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    tokenizer, pairs = loader.from_pretrained(model), told(problems)
    prompts = tuple(tuple(rendered(tokenizer, *each) for each in pair) for pair in pairs)
    return Work(str(model), tuple(pairs), prompts, samples, tokens, threads)


def play(way: str, path: Path) -> Measured:
    """One contestant once, in a process of its own."""
    copies = way == "copies"
    command = ["benchmarks.peers.gpu_copies"] if copies else ["benchmarks.peers.gpu_ours", way]
    done = subprocess.run(
        [sys.executable, "-m", *command, str(path)],
        cwd=page.ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "out of memory" in done.stderr:  # which ours survives, more slowly
        raise RuntimeError(f"{way} failed: {done.stderr.strip()[-2000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def run(
    shape: str, problems: int, samples: int, tokens: int, threads: int, rounds: int
) -> dict[str, list[Measured]]:
    """Both ways in turn, round after round."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    found: dict[str, list[Measured]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        model = make(shape, Path(name) / "model", dtype)
        path = work(model, problems, samples, tokens, threads).save(Path(name) / "work.json")
        for _ in range(rounds):
            for way, rows in found.items():
                rows.append(play(way, path))
                print(f"{way}: {rows[-1]}", file=sys.stderr)
    drawn = {one.tokens for rows in found.values() for one in rows}
    if drawn != {len(AGENTS) * problems * samples * tokens}:
        raise RuntimeError(f"the ways drew {sorted(drawn)} tokens: an answer ended early")
    return found


def report(
    found: dict[str, list[Measured]], shape: str, problems: int, samples: int, tokens: int
) -> str:
    """The section's text."""
    import torch

    one = found["ours"][0]
    dtype = "float32" if one.device == "CPU" else "bfloat16"
    rows = [[WAYS[way], *_cells(each)] for way, each in found.items()]
    return (
        f"On one **{one.device}**, torch {torch.__version__}, {dtype}: {len(AGENTS)} agents, "
        f"{problems} problems of `{TASK}` ({one.prompt_tokens / problems / len(AGENTS):.0f} tokens "
        f"a prompt), {samples} answers of {tokens} tokens each, then one update. A Qwen2 of the "
        f"shape {shape} ({_shape(shape)}), random weights, an end token that it can't draw; LoRA "
        f"of rank 16 on q, k, v and o. Rounds: {len(found['ours'])}, ways in turn, a process each; "
        "medians, with the range of what is compared. Memory is the most that was allocated on the "
        "GPU, or resident on a CPU.\n\n"
        f"{table(['way', 'tokens/s', 'update s', 'memory GiB'], rows)}\n\n{_ratios(found)}"
    )


def _shape(shape: str) -> str:
    sizes = SHAPES[shape]
    return (
        f"{sizes['num_hidden_layers']} layers, hidden size {sizes['hidden_size']}, vocabulary "
        f"{sizes['vocab_size']:,}"
    )


def _cells(rows: Sequence[Measured]) -> list[str]:
    return [ranged([figure(row) for row in rows], form) for figure, form in _FIGURES]


_FIGURES: tuple[tuple[Callable[[Measured], float], str], ...] = (
    (lambda row: row.tokens / row.generate_s, ",.0f"),
    (lambda row: row.update_s, ".2f"),
    (lambda row: row.peak_bytes / 2**30, ".2f"),
)


def _ratios(found: dict[str, list[Measured]]) -> str:
    """Round by round, as the ways took turns."""
    pairs = list(zip(found["ours"], found["copies"], strict=True))
    faster = [theirs.generate_s / ours.generate_s for ours, theirs in pairs]
    update = [theirs.update_s / ours.update_s for ours, theirs in pairs]
    memory = [theirs.peak_bytes / ours.peak_bytes for ours, theirs in pairs]
    return (
        f"Copies took {ranged(faster, '.2f')} times as long to answer, {ranged(update, '.2f')} "
        f"times as long to learn, and {ranged(memory, '.2f')} times the memory."
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4, help="of each prompt (G)")
    parser.add_argument("--tokens", type=int, default=512, help="of each answer")
    parser.add_argument("--threads", type=int, default=1, help="of torch on a CPU")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    size = args.problems, args.samples, args.tokens
    text = report(run(args.shape, *size, args.threads, args.rounds), args.shape, *size)
    print(text)
    if args.write:
        page.write("gpu", " ".join(["python -m benchmarks.peers.gpu", *given]), text)


if __name__ == "__main__":
    main()
