"""How fast a search draws from Qwen2.5-Coder: the embedded server beside backend local's sampler.

The same search (chains, four samples per problem) plays the first train problems of
code_collaboration once by the embedded server, which multiplies the 4-bit weights, and once by the
sampler that backend local trains with, which draws all that waits in one batch. Both have all
cores.

    python -m benchmarks.peers.coder_draws [--models NAME...] [--problems N] [--write]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import page
from benchmarks.quality.learning_host import wall_s
from benchmarks.quality.local_learning import Notes
from benchmarks.stats import columns, ended
from orchestry.core.config import validate
from orchestry.engine.run import train
from orchestry.store.run import Run

MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
PROBLEMS = 8
EMBEDDED = "embedded server, 4-bit"
WAYS: Mapping[str, Mapping[str, Any]] = {
    EMBEDDED: {"provider": {"name": "embedded"}},
    "sampler, float32": {"provider": {"name": "local"}},
    "sampler, bfloat16": {"provider": {"name": "local"}, "learn": {"dtype": "bfloat16"}},
}
SEARCH: Mapping[str, Any] = {
    "task": "code_collaboration",
    "search": {"strategy": "chains", "k_samples": 4},
    "sampling": {"max_tokens": 128, "temperature": 0.8},
    "judge": {"enabled": False},
    "behaviors": {"enabled": False},
    "cache": {"enabled": False},
    "allow_unsafe_code": True,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One search by one way."""

    model: str
    way: str
    tokens: int
    """Of all answers."""
    wall_s: float
    """From the run's opening to its end, without the process's start."""
    cpu_s: float
    """Of this process and of those that it waited for."""
    reward: float

    @property
    def per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.wall_s


def measure(models: Sequence[str], problems: int, folder: Path) -> Iterator[Drawn]:
    """Every model by every way, one after the other."""
    for model in models:
        for way, own in WAYS.items():
            provider = {**own["provider"], "model": model}
            config = {**SEARCH, **own, "provider": provider, "episodes": problems}
            began = _cpu_s()
            run = ended(train(validate(config), folder / f"{model}-{way}", Notes(way)))
            yield drawn(model, way, run, _cpu_s() - began)


def drawn(model: str, way: str, run: Run, cpu_s: float) -> Drawn:
    """What a run came to."""
    reward = fmean(leaf.score.total for record in run.episodes for leaf in record.leaves())
    return Drawn(model, way, run.summary.output_tokens, wall_s(run.events), cpu_s, reward)


def _cpu_s() -> float:
    return sum(os.times()[:4])


def report(found: Sequence[Drawn], problems: int) -> str:
    """The section's text."""
    base = {one.model: one.per_s for one in found if one.way == EMBEDDED}
    rows = [
        {
            "model": one.model,
            "way": one.way,
            "tokens": f"{one.tokens:,}",
            "wall s": f"{one.wall_s:.0f}",
            "CPU s": f"{one.cpu_s:.0f}",
            "tokens/s": f"**{one.per_s:.0f}**",
            "over the embedded": f"{one.per_s / base[one.model]:.2f}",
            "reward": f"{one.reward:.3f}",
        }
        for one in found
    ]
    faster = [one for one in found if one.per_s > base[one.model]]
    best = max(found, key=lambda one: one.per_s / base[one.model])
    verdict = (
        f"The most is {best.per_s / base[best.model]:.1f} times the embedded server's "
        f"({best.model}, {best.way})."
        if faster
        else "The embedded server is the fastest for each model."
    )
    return (
        f"{problems} train problems of `code_collaboration`, chains, 4 samples per problem, at "
        "most 128 tokens per answer, nothing learned. Wall clock from the opening of the run to "
        "its end, weights loaded in it. Rewards are of so few answers that they only show that "
        f"all ways play the same game.\n\n{columns(rows)}\n\n{verdict}"
    )


def main() -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coder-draws-") as name:
        text = report([*measure(args.models, args.problems, Path(name))], args.problems)
    print(text)
    if args.write:
        own = [] if tuple(args.models) == MODELS else ["--models", *args.models]
        own += [] if args.problems == PROBLEMS else ["--problems", str(args.problems)]
        command = " ".join(["python -m benchmarks.peers.coder_draws", *own, "--write"])
        page.write("coder_draws", command, text)


if __name__ == "__main__":
    main()
