"""What the default run learns of a house's conventions, through the whole learner.

A server on this machine answers as the scripted model of house_model.py: obedient to the rules in
its prompt, with habits of its own, and able to write a rule from the feedback that it is shown.
`orchestry run --task house_style --episodes 20` plays on it with the default settings of
everything, once for each seed (of model and run). Then the team plays the test split, untrained
and as it was left, without search: other kinds of texts, and other subjects.

    python -m benchmarks.quality.house_style [--seeds N] [--episodes N] [--folder DIR] [--write]

A finished run in --folder is not played again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import page
from benchmarks.quality import house_report
from benchmarks.quality.house_model import Model
from benchmarks.quality.house_report import Seed, Variant
from benchmarks.server import structured
from benchmarks.server.bill import Options
from benchmarks.server.loopback import Loopback, serve
from benchmarks.stats import done
from orchestry.core.config import validate
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import resume, train
from orchestry.store.run import Run, load_run

SEEDS, EPISODES = 10, 20
SAMPLES = 4
"""Trajectories per test problem."""
VARIANTS = (
    Variant("default", {}),
    Variant("rules of three conventions", {}, per_rule=3),
    Variant("room for 20 an agent", {"max_per_agent": 20}),
    Variant("room for 20, three times as long", {"max_per_agent": 20}, longer=3),
)
"""The default run, and what holds it back: where rules say more, where more of them have room, and
where there are more trials."""


class House(Loopback):
    """A loopback server that answers as the scripted model."""

    def __init__(self, model: Model, options: Options) -> None:
        super().__init__(options)
        self._model = model

    def write(self, body: dict[str, Any], body_hash: str, limit: int) -> tuple[str, int]:
        """See Loopback."""
        said = {message["role"]: message["content"] for message in body["messages"]}
        schema = structured.schema_of(body)
        text = self._model.answer(said["system"], said["user"], body_hash, schema)
        size = self.options.bytes_per_token
        return text[: int(limit * size)], min(limit, ceil(len(text) / size))


@contextmanager
def served(model: Model) -> Iterator[str]:
    """The URL of a server in a thread of its own, which ends with the block."""
    loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls = list[str]()

    async def work() -> None:
        async with serve(Options(), kind=partial(House, model)) as (url, _):
            urls.append(url)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[work()], daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"{urls[0]}/v1"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def _where(url: str) -> dict[str, str]:
    """The environment of a run whose server is there; its config names no port, so it resumes."""
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none-needed-here"}


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the runs lie, and how long they are."""

    folder: Path
    episodes: int = EPISODES
    samples: int = SAMPLES

    def play(self, variant: Variant, seed: int) -> Seed:
        """One run and its two evaluations; what is finished is read."""
        model = Model(seed, variant.per_rule)
        with served(model) as url, patch.dict(os.environ, _where(url)):
            run = self._run(variant, seed)
            if not done(run):
                raise SystemExit(f"{run.folder} stopped before its end: the same command goes on")
            before, after = (
                evaluate(run, "test", update=update, samples=self.samples) for update in (0, None)
            )
        return Seed(model, run, before, after)

    def _run(self, variant: Variant, seed: int) -> Run:
        name = variant.name.replace(" ", "-").replace(",", "")
        place = self.folder / f"{name}-{self.episodes}-{seed}"
        if not (place / "journal.jsonl").exists():
            return train(validate(self._config(variant, seed)), place)
        return load_run(place) if done(load_run(place)) else resume(place)

    def _config(self, variant: Variant, seed: int) -> dict[str, Any]:
        """The default run; it is told to learn, as it would by itself with a vendor's model."""
        model = f"house-model-{seed}-{variant.per_rule}"  # else the cache takes one for another
        return {
            "task": "house_style",
            "seed": seed,
            "episodes": variant.longer * self.episodes,
            "provider": {"name": "openai", "model": model},
            "prices": {model: {"input": 1.0, "output": 5.0}},
            "behaviors": {"enabled": True, **variant.behaviors},
            "cache": {"dir": self.folder / "answers"},
        }


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of a run")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-house-style"))
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    bench = Bench(args.folder, args.episodes)
    found = {variant: results(bench, variant, range(args.seeds)) for variant in VARIANTS}
    body = house_report.report(found, args.episodes, bench.samples)
    print(body)
    if args.write:
        options = f"--seeds {args.seeds} --episodes {args.episodes}"
        page.write(
            "house_style", f"python -m benchmarks.quality.house_style {options} --write", body
        )


def results(bench: Bench, variant: Variant, seeds: Sequence[int]) -> list[Seed]:
    """The runs of these seeds, one after another."""
    return [bench.play(variant, seed) for seed in seeds]


if __name__ == "__main__":
    main()
