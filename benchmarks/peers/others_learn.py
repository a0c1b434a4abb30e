"""Programs and environments that others wrote, and how a team learns in them.

    python -m benchmarks.peers.others_learn --sdk DIR --autogen DIR [--episodes N] [--folder DIR]
        [--only NAME ...] [--write]

DIR: checkouts of openai/openai-agents-python and of microsoft/autogen, of which nothing is copied
here; not needed for runs that are there. A file of benchmarks/peers/others starts their example,
names the agents' models, hands over the problem and says the reward; AutoGen's has lines of its
notebook changed on the way. What is finished is not played again. Environments of verifiers and
games of PettingZoo are tasks of a few lines. The extras `envs`, `local` and `verifiers` have what
they need; of PrimeIntellect-ai/verifiers, install environments/kuhn_poker and
environments/glossary. Backend local learns by MAGRPO; then the team plays the test problems, as it
began and as it ended.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.peers.others import autogen_team
from benchmarks.peers.overhead import PEERS, python_of
from benchmarks.peers.programs_learn import LEARN, Trio, figures, learned
from benchmarks.stats import columns
from orchestry.cli import group
from orchestry.ext.bridges.pettingzoo import ILLEGAL
from orchestry.store.journal import Lost, Released
from orchestry.store.run import Run
from orchestry.task.registry import load_task

PLACE = PEERS / "others"
CHECKOUTS = {"sdk": "openai/openai-agents-python", "autogen": "microsoft/autogen"}
NOTEBOOK = "python/docs/src/user-guide/agentchat-user-guide/tutorial/teams.ipynb"


@dataclass(frozen=True, slots=True)
class Other:
    """One of them."""

    title: str
    ours: str
    """The file that we wrote for it, below PLACE."""
    agents: tuple[str, ...]
    problems: str = ""
    """A program's, below PLACE; '': a task of its own."""
    checkout: str = ""
    inside: str = ""
    """Of the checkout: what the program takes."""
    frozen: str = ""
    """The opponent, which doesn't learn."""
    lapse: str = ""
    """In a rollout's feedback: that the agent which learns forfeited the game."""
    tokens: int = 64
    """Of an answer, at most."""

    @property
    def lines(self) -> int:
        """Of code: neither blank nor a docstring's."""
        text = (PLACE / self.ours).read_text()
        bare = text.split('"""', 2)[2]
        return sum(bool(line.strip()) for line in bare.splitlines())


OTHERS = {
    "sdk": Other(
        "OpenAI Agents SDK: `parallelization`, an agent pattern",
        "agents_sdk.py",
        ("spanish_agent", "translation_picker"),
        "sentences.jsonl",
        "sdk",
    ),
    "autogen": Other(
        "AutoGen: `tutorial/teams.ipynb`",
        "autogen_team.py",
        ("primary", "critic"),
        "subjects.jsonl",
        "autogen",
        NOTEBOOK,
    ),
    "kuhn": Other(
        "verifiers: `kuhn_poker`",
        "tasks/kuhn/task.py",
        ("player0", "player1"),
        frozen="player1",
        lapse=r"player0: .*forfeit 1",
    ),
    "glossary": Other(
        "verifiers: `glossary`",
        "tasks/glossary/task.py",
        ("agent",),
    ),
    "noughts": Other(
        "PettingZoo: `tictactoe_v3`",
        "tasks/noughts/task.py",
        ("player_1", "player_2"),
        frozen="player_2",
        tokens=8,
    ),
    "rps": Other(
        "PettingZoo: `rps_v2`",
        "tasks/rps/task.py",
        ("player_0", "player_1"),
        frozen="player_1",
        tokens=8,
    ),
}


Checkouts = Mapping[str, Path | None]


def attach(folder: Path, name: str, checkouts: Checkouts) -> Path:
    """Where the task is; of a program, it is written first."""
    one = OTHERS[name]
    if not one.problems:
        return PLACE / "tasks"
    if not (folder / "tasks" / name).exists():
        upstream = checkouts[one.checkout]
        if upstream is None:
            raise SystemExit(f"{name} needs --{one.checkout} DIR, a checkout: see --help")
        given = ["--problems", str(PLACE / one.problems), "--agents", ",".join(one.agents)]
        command = [python_of("others"), str(PLACE / one.ours)]
        words = ["attach", name, *given, "--dir", str(folder / "tasks"), "--", *command]
        group.main([*words, str(upstream.absolute() / one.inside)], standalone_mode=False)
    return folder / "tasks"


def play(folder: Path, name: str, episodes: int, checkouts: Checkouts) -> Trio:
    """From the start, or what is missing."""
    one = OTHERS[name]
    given = {
        "task": name,
        "task_path": [str(attach(folder, name, checkouts))],
        "sampling": {"max_tokens": one.tokens, "temperature": 0.8},
        "agents": {one.frozen: {"frozen": True}} if one.frozen else {},
        "episodes": episodes,
    }
    return learned(folder / f"{name}-{episodes}", given)


def place(folder: Path, name: str) -> Path:
    """What the program of an attached task takes, in its checkout."""
    task: Any = load_task(name, task_path=[folder / "tasks"])
    return Path(task.command[-1])


def theirs(folder: Path, name: str) -> int:
    """How many lines of theirs were changed: but for AutoGen's notebook, nothing changes any."""
    return lines_changed(place(folder, name)) if name == "autogen" else 0


def lines_changed(notebook: Path) -> int:
    """How many of its lines autogen_team plays otherwise than they are written."""
    before = autogen_team.changed(notebook, {}).splitlines()
    after = autogen_team.changed(notebook).splitlines()
    parts = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in parts if kind != "equal")


def rows(folder: Path, found: Mapping[str, Trio]) -> Iterator[dict[str, str]]:
    """The table."""
    for name, trio in found.items():
        one = OTHERS[name]
        yield {
            "program or game": one.title,
            "agents": str(len(one.agents)),
            "our lines": str(one.lines),
            "their lines changed": str(theirs(folder, name)),
            **figures(trio),
            "what else failed, in learning": "; ".join(failed(one, trio[0])),
        }


def failed(one: Other, run: Run) -> Iterator[str]:
    """What a run holds of failures, but for rollouts without a score."""
    nodes = [node for episode in run.episodes for node in episode.nodes]
    moves = [turn for node in nodes for turn in node.turns]
    made, wrong = called(run)
    rollouts = sum(bool(node.score.returns) or bool(node.score.feedback) for node in nodes)
    counts = {
        "calls lost": sum(isinstance(event, Lost | Released) for event in run.events),
        f"of {made:,} calls of tools wrong": wrong,
        f"of {len(moves):,} answers cut off": sum(t.completion.stop == "length" for t in moves),
        f"of {rollouts:,} games ended by an illegal answer": sum(
            ILLEGAL in node.score.tags for node in nodes
        ),
        f"of {rollouts:,} games forfeited": sum(
            bool(one.lapse and re.search(one.lapse, node.score.feedback)) for node in nodes
        ),
    }
    yield from (f"{count:,} {what}" for what, count in counts.items() if count)


def called(run: Run) -> tuple[int, int]:
    """Tools' results that agents were told, and how many say what was wrong."""
    told = Counter[bool]()
    for turn in (t for e in run.episodes for n in e.nodes for t in n.turns):
        new = takewhile(lambda message: message.role == "tool", reversed(turn.messages))
        told.update(message.content.startswith("error:") for message in new)
    return told.total(), told[True]


def main() -> None:
    """Plays what is missing, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sdk", type=Path, help="checkout of openai/openai-agents-python")
    parser.add_argument("--autogen", type=Path, help="checkout of microsoft/autogen")
    parser.add_argument("--episodes", type=int, default=48)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-others"))
    parser.add_argument("--only", nargs="+", choices=OTHERS, default=[*OTHERS], help="play those")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    checkouts = {"sdk": args.sdk, "autogen": args.autogen}
    folder = args.folder.absolute()
    found = {name: play(folder, name, args.episodes, checkouts) for name in args.only}
    told = " ".join([_told(args.episodes), *_sources(folder, found), *_unlearned(found)])
    body = f"{told}\n\n{columns([*rows(folder, found)], figures=False)}"
    print(body)
    if args.write:
        names = " ".join(args.only)
        command = (
            f"python -m benchmarks.peers.others_learn --only {names} --episodes {args.episodes}"
        )
        page.write("others", f"{command} --write", body)


def _told(episodes: int) -> str:
    pinned = (PEERS / "requirements-others.txt").read_text().split()
    ours = [f"{name}=={version(name)}" for name in ("pettingzoo", "verifiers")]
    return (
        "Of the frameworks, the code is their own example (versions: "
        f"{', '.join([*pinned, *ours])}). What we wrote names each agent's model, hands over a "
        "problem and says the reward; of AutoGen's notebook it takes the first two cells and "
        "changes lines for that, and so that a team whose critic never approves ends. The "
        "rewards: how alike a translation is to a reference; whether a poem "
        "names its subject, is short and was approved of. In the games one agent learns against "
        "one that does not; the rewards are the environments' own. An interval over one test "
        "problem says nothing. Minutes are wall time of a run's last process, whatever else the "
        "machine did. What else failed is what a run holds of it: calls without an answer, calls "
        "of tools that are told an error, answers cut off at their limit, games forfeited; a call "
        "that the address refused leaves no trace but in the program's end. "
        f"{episodes} episodes of {LEARN['group_size']} rollouts, the embedded model (135M), "
        "bfloat16, one seed, one thread."
    )


def _sources(folder: Path, found: Mapping[str, Trio]) -> Iterator[str]:
    """The revisions of theirs, and of ours that began the runs."""
    for name in [name for name in found if OTHERS[name].checkout]:
        where = place(folder, name)
        at = where if where.is_dir() else where.parent
        git = ["git", "-C", str(at), "describe", "--always", "--dirty", "--exclude", "*"]
        done = subprocess.run(git, capture_output=True, text=True, check=True)
        yield f"The checkout of {CHECKOUTS[OTHERS[name].checkout]} is at {done.stdout.strip()}."
    manifests = [
        json.loads((run.folder / "manifest.json").read_bytes()) for run, *_ in found.values()
    ]
    ours = sorted({one["git_revision"][:7] for one in manifests})
    yield f"The runs began at revision {', '.join(ours)} of Orchestry."


def _unlearned(found: Mapping[str, Trio]) -> Iterator[str]:
    """Why glossary earned nothing, if so."""
    run = found["glossary"][0] if "glossary" in found else None
    if run is not None and not any(one.reward for one in run.episodes):
        made, wrong = called(run)
        yield (
            "`glossary` pays 1 for an answer that repeats a fact which its tool alone tells, else "
            f"0: the model called a tool {made} times, {wrong} of them wrongly (arguments that are "
            "no JSON, or a tool that is not there), so that no rollout earned anything and no "
            "update had a difference to learn from."
        )


if __name__ == "__main__":
    main()
