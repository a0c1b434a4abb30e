"""Programs and environments that others wrote, and how a team learns in them.

    python -m benchmarks.peers.others_learn --sdk DIR --autogen DIR [--episodes N] [--folder DIR]
        [--only NAME ...] [--write]

DIR: checkouts of openai/openai-agents-python and of microsoft/autogen, of which nothing is copied
here. Their examples run as they stand, started by a file of benchmarks/peers/others that names the
agents' models, hands over the problem and says the reward. Environments of verifiers and games of
PettingZoo are tasks of a few lines. The extras `envs`, `local` and `verifiers` have what they need;
of PrimeIntellect-ai/verifiers, install environments/kuhn_poker and environments/glossary. Backend
local learns by MAGRPO; then the team plays the test problems, as it began and as it ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks import page
from benchmarks.peers.overhead import PEERS, python_of
from benchmarks.peers.programs_learn import LEARN, Trio, figures, learned
from benchmarks.stats import columns
from orchestry.cli import group

PLACE = PEERS / "others"
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


def rows(found: Mapping[str, Trio]) -> Iterator[dict[str, str]]:
    """The table."""
    for name, trio in found.items():
        one = OTHERS[name]
        yield {
            "program or game": one.title,
            "agents": str(len(one.agents)),
            "our lines": str(one.lines),
            **figures(trio),
        }


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
    body = f"{_told(args.episodes)}\n\n{columns([*rows(found)], figures=False)}"
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
        "Of the frameworks, the code is their own example, run as it stands (versions: "
        f"{', '.join([*pinned, *ours])}); what we wrote names each agent's model, hands over a "
        "problem and says the reward: how alike a translation is to a reference; whether a poem "
        "names its subject, is short and was approved of. In the games one agent learns against "
        "one that does not; the rewards are the environments' own. An interval over one test "
        "problem says nothing. Minutes are wall time of a run's last process, whatever else the "
        "machine did. "
        f"{episodes} episodes of {LEARN['group_size']} rollouts, the embedded model (135M), "
        "bfloat16, one seed, one thread."
    )


if __name__ == "__main__":
    main()
