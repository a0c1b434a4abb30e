"""Memory and seconds until many prompts are computed: passes of bounded size beside a single pass.

One token is drawn for each prompt, in a process of its own. On a GPU where torch finds one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.stats import ranged
from orchestry.report.text import table

WAYS = {"bounded": "as it is", "single": "one pass over all prompts, as before"}
ALL = 1 << 40
ROLES = ("helper", "main")


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts to compute, of two agents in turn."""

    shape: str
    prompts: int
    least: int
    most: int
    """Tokens of a prompt."""

    def said(self) -> str:
        lengths = f"{self.least:,} to {self.most:,}" if self.least < self.most else f"{self.most:,}"
        return f"{self.shape}, {self.prompts} prompts of {lengths} tokens"

    def lengths(self) -> list[int]:
        """Spread evenly, in a seeded order."""
        step = (self.most - self.least) / max(1, self.prompts - 1)
        found = [round(self.least + n * step) for n in range(self.prompts)]
        random.Random(0).shuffle(found)
        return found


CASES = (
    Case("tiny", 32, 2_900, 3_000),
    Case("tiny", 32, 1_000, 3_000),
    Case("tiny", 32, 3_000, 3_000),
    Case("tiny", 16, 100, 250),
    Case("135M", 24, 100, 250),
)
"""Long ones, ones of equal length, and those of a run of short prompts."""


def measure(model: str, case: Case, way: str, threads: int) -> dict[str, Any]:
    """In this process: bytes beyond those of the loaded team, seconds, and what was drawn."""
    import torch

    from benchmarks.peers.gpu_work import name_of, peak, timed
    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.model import load_base
    from orchestry.backends.local.sampler import Prompt, Sampler
    from orchestry.backends.local.sizes import PREFILL_TOKENS

    torch.set_num_threads(threads)
    base = load_base(model)
    adapters = Adapters(base, ROLES)
    most = PREFILL_TOKENS if way == "bounded" else ALL
    sampler = Sampler(base, adapters, prefill_tokens=most)
    drawn = random.Random(1)

    def prompt(number: int, length: int) -> Prompt:
        ids = tuple(drawn.randrange(256) for _ in range(length))
        return Prompt(number % len(ROLES), ids, 1, 0.8, 0.95, (), (number,))

    sampler.draw([prompt(number, 8) for number in range(2)], 1)  # what is loaded at first use
    asked = [prompt(number, length) for number, length in enumerate(case.lengths())]
    forget_peak()
    before = peak(base.device)
    found, seconds = timed(base.device, lambda: sampler.draw(asked, 1))
    answers = [one.ids for [one] in found]
    return {
        "device": name_of(base.device),
        "bytes": peak(base.device) - before,
        "seconds": seconds,
        "answers": hashlib.sha256(json.dumps(answers).encode()).hexdigest(),
    }


def forget_peak() -> None:
    """So that what loading took does not hide what drawing takes (proc(5), clear_refs)."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def play(model: Path, number: int, way: str, threads: int) -> dict[str, Any]:
    """One way through one case, in a process of its own."""
    child = [sys.executable, "-m", "benchmarks.guarantees.prefill", "--threads", str(threads)]
    done = subprocess.run(
        [*child, "--child", str(model), str(number), way],
        cwd=page.ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{way} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(rounds: int, threads: int) -> str:
    """The section's text."""
    import torch

    from benchmarks.peers.gpu_work import make

    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    rows, devices = list[list[str]](), set[str]()
    with tempfile.TemporaryDirectory(prefix="prefill-") as name:
        folders = {c.shape: make(c.shape, Path(name) / c.shape, dtype) for c in CASES}
        for number, case in enumerate(CASES):
            found = {way: list[dict[str, Any]]() for way in WAYS}
            for _ in range(rounds):
                for way, each in found.items():
                    each.append(play(folders[case.shape], number, way, threads))
                    print(f"{case.said()}, {way}: {each[-1]}", file=sys.stderr)
            devices |= {one["device"] for each in found.values() for one in each}
            same = len({one["answers"] for each in found.values() for one in each}) == 1
            rows.append([case.said(), *_cells(found), "yes" if same else "no"])
    header = [*(f"{unit} {way}" for unit in ("MiB", "s") for way in ("as it is", "in one pass"))]
    return (
        f"On one **{', '.join(devices)}**, torch {torch.__version__}, {str(dtype)[6:]}, random "
        "weights, two agents; a token is drawn for each prompt. Medians (and range) of "
        f"{rounds} rounds, ways in turn, a process each; memory is what was allocated on a GPU, or "
        "resident on a CPU, at most, beyond the loaded team.\n\n"
        f"{table(['prompts', *header, 'same tokens'], rows)}"
    )


def _cells(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    memory = [ranged([one["bytes"] / 2**20 for one in found[way]], ",.0f") for way in WAYS]
    seconds = [ranged([one["seconds"] for one in found[way]], ".2f") for way in WAYS]
    return [*memory, *seconds]


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of torch on a CPU")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    if args.child:
        model, number, way = args.child
        print(json.dumps(measure(model, CASES[int(number)], way, args.threads)))
        return
    text = report(args.rounds, args.threads)
    print(text)
    if args.write:
        page.write("prefill", " ".join(["python -m benchmarks.guarantees.prefill", *given]), text)


if __name__ == "__main__":
    main()
