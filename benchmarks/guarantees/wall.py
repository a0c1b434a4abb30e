"""How full the call slots are in a default run that judges, gives credit and learns.

`orchestry run` of 40 episodes of `trio` (three agents, answers of different worth) with the
defaults of a Claude model, on a loopback server in another process with a constant latency. Ideal
is calls x latency / slots. The timeline comes from the journal: a call is in flight from when its
answer's `seconds` began to when it arrived. The run is played in this process after a small one
that is not counted (imports, first connections). The second latency tells waiting from the time
that the engine itself takes. Each is played without and with `behaviors.overlap`.

    python -m benchmarks.guarantees.wall [--latency-s S ...] [--episodes N] [--set KEY=VALUE ...]
        [--repeats N] [--patience S] [--realtime] [--json] [--write]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks import load, page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import ROOT, Spawned, spawn
from benchmarks.stats import columns
from orchestry.core.config import RunConfig, resolve
from orchestry.engine.run import train
from orchestry.store.journal import Answered
from orchestry.store.run import Run

COMMAND = "python -m benchmarks.guarantees.wall --realtime --patience 0 --write"
TASKS = ROOT / "benchmarks" / "server" / "tasks"
PLACES = 32
GOAL = 1.5
GOAL_IN_FLIGHT = 20
BASE = (
    *("task=trio", f"task_path=[{TASKS}]", "provider.name=anthropic", "cache.enabled=false"),
    *("provider.model=claude-haiku-5-5", f"search.concurrency={PLACES}"),
)
SEARCH = ("act", "judge", "credit")


@dataclass(frozen=True, slots=True)
class Span:
    """A call in flight, in seconds since the run began."""

    purpose: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was in flight between two moments, in calls by purpose."""

    seconds: float
    calls: dict[str, int]

    @property
    def kind(self) -> str:
        """What it is called in the timeline: the search's calls of all kinds are one."""
        found = {"search" if purpose in SEARCH else purpose for purpose in self.calls}
        return " and ".join(sorted(found)) or "nothing"


@dataclass(frozen=True, slots=True)
class Look:
    """One run. `others`: share of the machine that other processes took meanwhile."""

    latency_s: float
    overlap: bool
    calls: Counter[str]
    drawn_s: float
    wall_s: float
    cpu_s: float
    others: float
    stretches: list[Stretch]

    @property
    def ideal_s(self) -> float:
        return self.drawn_s / PLACES

    @property
    def ratio(self) -> float:
        return self.wall_s / self.ideal_s

    @property
    def in_flight(self) -> float:
        """Mean calls in flight, as the server had them."""
        return self.drawn_s / self.wall_s


def spans(run: Run) -> list[Span]:
    """The run's calls, from its journal."""
    found = [e for e in run.events if isinstance(e, Answered) and e.source == "provider"]
    return [Span(e.purpose, e.at - e.seconds, e.at) for e in found]


def timeline(calls: Iterable[Span], began: float, ended: float) -> Iterator[Stretch]:
    """The wall clock, cut wherever a call began or ended."""
    edges = [(began, 0, ""), (ended, 0, "")]
    for call in calls:
        edges += [(call.start, 1, call.purpose), (call.end, -1, call.purpose)]
    now = Counter[str]()
    for (at, change, purpose), (until, *_) in itertools.pairwise(sorted(edges)):
        now[purpose] += change
        yield Stretch(until - at, {name: n for name, n in now.items() if n})


def config(url: str, episodes: int, *sets: str) -> RunConfig:
    return resolve([], [*BASE, f"provider.base_url={url}", f"episodes={episodes}", *sets])


def look(
    server: Spawned, latency_s: float, episodes: int, sets: Sequence[str], *, overlap: bool = False
) -> Look:
    """Plays the run once, after a small one."""
    sets = [*sets, f"behaviors.overlap={str(overlap).lower()}"]
    with tempfile.TemporaryDirectory() as folder:
        train(config(server.url, 2, *sets, "behaviors.enabled=false"), Path(folder, "warm"))
        server.reset()
        before, cpu = load.read(server.pid), _cpu()
        began, clock = time.monotonic(), time.time()
        run = train(config(server.url, episodes, *sets), Path(folder, "run"))
        wall_s, ended = time.monotonic() - began, time.time()
        cpu_s, others = _cpu() - cpu, load.others(before, load.read(server.pid))
        calls = spans(run)
    return Look(
        latency_s=latency_s,
        overlap=overlap,
        calls=Counter(call.purpose for call in calls),
        drawn_s=server.bill()["latency_total_s"],
        wall_s=wall_s,
        cpu_s=cpu_s,
        others=others,
        stretches=list(timeline(calls, clock, ended)),
    )


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def play(args: argparse.Namespace) -> list[Look]:
    """All looks; those of one latency one after another."""
    found = []
    for latency_s in args.latency_s:
        with spawn(Options(latency_s=latency_s)) as server:
            for overlap in [False, True] * args.repeats:
                load.wait(args.patience)
                found.append(look(server, latency_s, args.episodes, args.set, overlap=overlap))
                print(_row(found[-1]), file=sys.stderr)
    return found


def _row(one: Look) -> dict[str, str]:
    return {
        "latency s": f"{one.latency_s:g}",
        "overlap": str(one.overlap).lower(),
        "calls": str(one.calls.total()),
        **{name: str(one.calls[name]) for name in (*SEARCH, "distil", "trial")},
        "ideal s": f"{one.ideal_s:.1f}",
        "wall s": f"{one.wall_s:.1f}",
        "wall / ideal": f"{one.ratio:.2f}",
        "in flight": f"{one.in_flight:.1f}",
        "CPU s of the run": f"{one.cpu_s:.1f}",
        "other processes": f"{one.others:.0%}",
    }


def shares(one: Look) -> list[dict[str, str]]:
    """What was in flight, how long, and how many call slots stood idle meanwhile."""
    seconds, taken = defaultdict[str, float](float), defaultdict[str, float](float)
    for stretch in one.stretches:
        seconds[stretch.kind] += stretch.seconds
        taken[stretch.kind] += stretch.seconds * sum(stretch.calls.values())
    idle = {kind: max(0.0, PLACES * seconds[kind] - taken[kind]) for kind in seconds}
    return [
        {
            "in flight": kind,
            "seconds": f"{seconds[kind]:.1f}",
            "slots taken, mean": f"{taken[kind] / max(seconds[kind], 1e-9):.1f}",
            "share of all idle time": f"{idle[kind] / sum(idle.values()):.0%}",
        }
        for kind in sorted(idle, key=lambda kind: -idle[kind])
    ]


def section(looks: Sequence[Look], episodes: int) -> str:
    """The section's text; the goal is judged by the median look at the first latency."""
    first = [one for one in looks if one.latency_s == looks[0].latency_s]
    parts = [_part([one for one in first if one.overlap == way]) for way in (False, True)]
    return (
        f"{episodes} episodes with the defaults of a Claude model, judge, credit and learning on, "
        f"{PLACES} calls at once, constant latency. With `behaviors.overlap` the next episodes are "
        f"played while an update races. Ideal is calls x latency / {PLACES}; in flight is the mean "
        f"over the wall clock.\n\n{columns([_row(one) for one in looks], False)}\n\n"
        + "\n\n".join(parts)
    )


def _part(looks: Sequence[Look]) -> str:
    """Where slots stand idle, and whether the goal is met, with or without overlap."""
    middle = sorted(looks, key=lambda one: one.ratio)[len(looks) // 2]
    met = middle.ratio <= GOAL and middle.in_flight >= GOAL_IN_FLIGHT
    return (
        f"Where call slots stand idle at {middle.latency_s:g} s, "
        f"{'with' if middle.overlap else 'without'} overlap (search: the agents', the judge's and "
        f"the credit's calls):\n\n{columns(shares(middle), False)}\n\n"
        f"Goal of wall / ideal <= {GOAL:g} and at least {GOAL_IN_FLIGHT} in flight: "
        f"{middle.ratio:.2f} and {middle.in_flight:.1f}, {'met' if met else 'missed'}."
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guarantees.wall", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--latency-s", type=float, nargs="+", default=[0.1, 0.3])
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--set", nargs="+", default=[], help="config keys besides")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for quiet")
    parser.add_argument(
        "--realtime", action="store_true", help="go before all other processes (as root)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args(argv)
    if args.realtime:  # inherited by the server
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    with patch.dict(os.environ, {"ANTHROPIC_API_KEY": "none-needed-here"}):
        found = play(args)
    text = section(found, args.episodes)
    print(json.dumps([asdict(one) for one in found]) if args.json else text)
    if args.write:
        page.write("wall", COMMAND, text)


if __name__ == "__main__":
    main()
