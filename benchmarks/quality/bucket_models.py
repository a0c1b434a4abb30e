"""What a team of 135M language models earns in Bucket Brigade, beside scripted teams and PPO.

    python -m benchmarks.quality.bucket_models [--only SCENARIO WAY] [--folder DIR] [--write]

The embedded model plays by text, one trajectory per held-out game: as it is, with three examples of
a scripted player's answers in each prompt, with behaviours that it wrote itself from train games,
and with adapters that backend local trained (MAGRPO) on short train games. Last, without examples,
taught by a policy of backend ppo (`orchestry distil --teacher`), and after that trained by MAGRPO.
Scripted teams and PPO stand beside it from the table of `bucket_ppo`: they played that benchmark's
games, by arrays. A finished part is a line of benchmarks/kept/bucket_models.jsonl and is not played
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import page
from benchmarks.kept import KEPT, keep_line, kept_lines, span, to_its_end
from benchmarks.peers.bucket_speed import module
from benchmarks.quality import bucket_ppo
from benchmarks.stats import columns, ended
from orchestry.core.config import validate
from orchestry.engine.evaluate import as_left, held_out_config, play_measurement
from orchestry.engine.run import prepare
from orchestry.engine.session import Silent
from orchestry.ext.distil.distil import distil
from orchestry.report.stats import interval
from orchestry.store.checkpoints import CHECKPOINT
from orchestry.store.run import Run, load_run
from orchestry.task.registry import load_task

FILE = KEPT / "bucket_models.jsonl"
SCENARIOS = ("default", "early_containment")
WAYS = {
    "plain": "as it is",
    "examples": "with examples",
    "behaviors": "with examples and behaviours",
    "weights": "with examples, by backend local",
    "magrpo": "with examples and trained adapters",
    "taught": "taught by PPO",
    "practised": "taught by PPO, then trained",
}
MODEL = "embedded"
TEACHER = "guard"
EXAMPLES = 3
GAMES = 8
TRAIN = 6
MAGRPO: Mapping[str, Any] = {
    "group_size": 4,
    "every": 2,
    "learning_rate": 5e-4,
    "threads": 1,
    "dtype": "float32",  # the same on every processor
}
SHORT: Mapping[str, Any] = {"rules": {"min_nights": 3}, "max_nights": 4}
"""Games to learn in: a game of many nights takes minutes."""
LESSONS, EPOCHS = 16, 2
"""Games that PPO plays to teach, and passes over what it said."""
ONE_FOR_ALL = {"shared": True, "rank": 16, "threads": 1, "dtype": "float32"}
PRACTICE = 12
PRACTISED: Mapping[str, Any] = {
    **ONE_FOR_ALL,
    "group_size": 4,
    "every": 2,
    "learning_rate": 2e-4,
}
BURNING: Mapping[str, Any] = {
    "rules": {"min_nights": 3, "prob_house_catches_fire": 0.2},
    "max_nights": 4,
}
"""Short games in which what agents do tells: without more fires, most have none."""
MEANT = {
    "plain": "",
    "examples": f"`with examples`: {EXAMPLES} turns of `{TEACHER}`, from train games, in each "
    "agent's prompt. ",
    "behaviors": f"`behaviours`: learned from {TRAIN} train games of two trajectories by the same "
    "model, without a judge. ",
    "weights": "`by backend local`: the same model in float32, drawn from as it is trained, and "
    "untrained. ",
    "magrpo": f"`trained adapters`: by MAGRPO in {TRAIN} train games of at most "
    f"{SHORT['max_nights']} nights, in groups of {MAGRPO['group_size']}; then they play games of "
    "full length. ",
    "taught": f"`taught by PPO`: no examples in prompts; one adapter for all four learned what a "
    f"policy of backend ppo does in {LESSONS} train games (`orchestry distil --teacher`). ",
    "practised": f"`then trained`: from there by MAGRPO in {PRACTICE} train games of at most "
    f"{BURNING['max_nights']} nights in which a house catches fire with a chance of "
    f"{BURNING['rules']['prob_house_catches_fire']:.0%} per night; then games by the usual rules. ",
}
"""Said of each way that was played."""
PPO_STEPS = 10_000_000


def examples(scenario: str) -> dict[str, dict[str, Any]]:
    """By agent: what it saw in train games of the teacher's, and what the teacher answered; each
    mode comes up, if it did in the games."""
    task: Any = load_task("bucket_brigade", options={"scenario": scenario})
    turns: dict[str, dict[str, str]] = {spec.role: {} for spec in task.agents}
    for problem in task.problems("train")[:TRAIN]:
        _taught(task, task.reset(problem, 0), turns)
    return {role: {"examples": _chosen(own)} for role, own in turns.items()}


def _taught(task: Any, state: Any, turns: Mapping[str, dict[str, str]]) -> None:
    """Adds what the teacher answers to each observation of a game."""
    import numpy as np

    scripts = [task.script(TEACHER, (seat,), 1, 0) for seat in range(len(turns))]
    begun = True
    while task.to_act(state):
        seen, said = task.seen(state), {}
        for seat, role in enumerate(turns):
            action = scripts[seat].act(seen[None, [seat]], np.array([begun]))[0, 0]
            said[role] = turns[role][task.observe(state, role)] = task.said(state, action)
        state, begun = task.step(state, said), False


def _chosen(turns: Mapping[str, str]) -> list[dict[str, str]]:
    """The last turns of each mode, by turns."""
    by_mode = [
        [{"asked": asked, "answered": text} for asked, text in turns.items() if mode in text]
        for mode in (", work,", ", rest,")
    ]
    found = list[dict[str, str]]()
    while len(found) < EXAMPLES and any(by_mode):
        found += [own.pop() for own in by_mode if own][: EXAMPLES - len(found)]
    return found


def taught(scenario: str, folder: Path) -> Run:
    """A team that learned a PPO policy's play, and nothing else."""
    place = folder / f"{scenario}-taught"
    if not place.exists():
        teacher = to_its_end(bucket_ppo.config(scenario, 0, PPO_STEPS), folder / f"{scenario}-ppo")
        given = {"provider": {"model": MODEL}, "learn": ONE_FOR_ALL, "sampling": {"max_tokens": 24}}
        how: Any = {"teacher": str(teacher.folder), "games": LESSONS, "epochs": EPOCHS}
        distil(into=place, config=given, note=print, **how)
    return load_run(place)


def practised(scenario: str, folder: Path) -> Run:
    """That team, after training in games that burn."""
    begun = taught(scenario, folder).folder / CHECKPOINT
    learning = {
        "task": "bucket_brigade",
        "options": {"scenario": scenario, **BURNING},
        "backend": "local",
        "provider": {"model": MODEL},
        "sampling": {"max_tokens": 24},
        "episodes": PRACTICE,
        "judge": {"enabled": False},
        "learn": {**PRACTISED, "from": str(begun)},
    }
    return to_its_end(learning, folder / f"{scenario}-practised")


def config(scenario: str, way: str) -> dict[str, Any]:
    """Of a run on train games; one that learns nothing plays a single game."""
    common = {
        "task": "bucket_brigade",
        "options": {"scenario": scenario},
        "sampling": {"max_tokens": 24},
        "episodes": TRAIN if way in ("behaviors", "magrpo") else 1,
        "judge": {"enabled": False},
        "agents": examples(scenario) if way != "plain" else {},
    }
    if way in ("weights", "magrpo"):
        learn = {**MAGRPO, "enabled": way == "magrpo"}
        weights = {"backend": "local", "provider": {"model": MODEL}, "learn": learn}
        return {**common, **weights, "options": {"scenario": scenario, **SHORT}}
    learns = way == "behaviors"
    return {
        **common,
        "provider": {"name": "embedded"},
        "search": {"strategy": "best_of_n" if learns else "single", "k_samples": 2},
        "behaviors": {"enabled": learns, "every": 2},
    }


def measured(run: Run, scenario: str) -> Run:
    """Held-out games of full length by the team as its last update left it."""
    own, place = validate(run.config), run.folder / "held-out"
    plain = {**as_left(run, own, place), "options": {"scenario": scenario}}
    plan = prepare(held_out_config(plain, "test", None, 1, GAMES), held_out=True)
    return play_measurement(plan, place, Silent())


def play(scenario: str, way: str, folder: Path) -> Mapping[str, Any]:
    """Learns, or goes on; then measures, and keeps the result."""
    if way in _TAUGHT:
        run = _TAUGHT[way](scenario, folder)
    else:
        run = to_its_end(config(scenario, way), folder / f"{scenario}-{way}")
    episodes = ended(measured(run, scenario)).episodes
    ends = [episode.best_node.score.returns for episode in episodes]
    turns = [turn for episode in episodes for node in episode.nodes for turn in node.turns]
    task: Any = load_task("bucket_brigade", options={"scenario": scenario})
    text = module("text")
    line = {
        "scenario": scenario,
        "way": way,
        "returns": [round(fmean(returns), 2) for returns in ends],
        "answers": len(turns),
        "read": sum(text.action(one.completion.text, task.scenario) is not None for one in turns),
        "behaviors": 0 if way in _TAUGHT else run.summary.accepted,
    }
    return keep_line(FILE, line)


_TAUGHT = {"taught": taught, "practised": practised}


def known() -> dict[tuple[str, str], Mapping[str, Any]]:
    """The kept results."""
    return {(one["scenario"], one["way"]): one for one in kept_lines(FILE)}


def report(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """The section."""
    rows = [_row(line, found.get((line["scenario"], "plain"))) for _, line in sorted(found.items())]
    beside = [_beside(name) for name in dict.fromkeys(name for name, _ in sorted(found))]
    every = [(scenario, way) for scenario in SCENARIOS for way in WAYS]
    missing = [f"{scenario} {WAYS[way]}" for scenario, way in every if (scenario, way) not in found]
    played = "".join(MEANT[way] for way in dict.fromkeys(way for _, way in sorted(found)))
    return (
        f"The embedded 135M model plays {GAMES} held-out games by text, all four seats, one "
        f"trajectory each. {played}Mean return per agent, and how much more it is than that of "
        "the model as it is in the same games, with 95 % intervals over games; an answer that "
        "names no action is rest at home. "
        f"Not played yet: {', '.join(missing) or 'nothing'}. {span(found.values())}\n\n"
        f"{columns(rows, figures=False)}\n\n{_practice(found)}Beside it, from the table of PPO "
        "above (its own games, seed 0): mean return per agent.\n\n"
        f"{columns(beside, figures=False)}{_causes(found)}"
    )


def _practice(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """What training adds to a taught team, in the same games."""
    gains = {
        name: _gains(found[name, "practised"], found[name, "taught"])
        for name in SCENARIOS
        if (name, "practised") in found and (name, "taught") in found
    }
    if not gains:
        return ""
    each = ", ".join(f"{_told(gain, '.1f')} in {name}" for name, gain in gains.items())
    return f"Training after the teaching adds {each} to the return.\n\n"


def _causes(found: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """What we think why the adapters teach nothing, where answers are read less often by them."""
    pairs = [(found.get((name, "magrpo")), found.get((name, "weights"))) for name in SCENARIOS]
    if not all(one and other and one["read"] < other["read"] for one, other in pairs):
        return ""
    calm = f"{_calm('default', SHORT):.0%}"
    return (
        f"\n\nWhat we think why training with examples makes answers worse: of games of "
        f"{SHORT['max_nights']} nights, {calm} have no fire even if all rest. There trajectories "
        "of a group differ by the cost of work alone, and Adam takes steps of one size however "
        "small the advantages are. So few games teach noise, not play. The model answers in a form "
        "that is read because it copies its examples; that it chooses well is not seen there."
    )


def _calm(scenario: str, options: Mapping[str, Any], games: int = 1000) -> float:
    """The share of games in which nothing burns, though all rest."""
    task: Any = load_task("bucket_brigade", options={"scenario": scenario, **options})
    ruined, action = module("game").RUINED, module("game").Action
    rest, calm = [action(home) for home in task.scenario.homes], 0
    for seed in range(games):
        state = task.reset(task.problems("train")[0], seed)
        while task.to_act(state):
            state = task.play(state, rest)
        calm += ruined not in state.ring.houses
    return calm / games


def _row(line: Mapping[str, Any], plain: Mapping[str, Any] | None) -> dict[str, str]:
    more = "" if plain is None or plain is line else _told(_gains(line, plain))
    return {
        "scenario": line["scenario"],
        "the model": WAYS[line["way"]],
        "return": _told(line["returns"]),
        "more than as it is": more,
        "answers read": f"{line['read'] / line['answers']:.0%}",
        "behaviours accepted": str(line["behaviors"]),
    }


def _gains(line: Mapping[str, Any], plain: Mapping[str, Any]) -> list[float]:
    """By game, which all ways play with the same luck."""
    return [own - other for own, other in zip(line["returns"], plain["returns"], strict=True)]


def _told(numbers: Sequence[float], form: str = ".0f") -> str:
    found = interval(numbers)
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def _beside(scenario: str) -> dict[str, str]:
    returns = bucket_ppo.known(PPO_STEPS)[scenario, 0]["returns"]
    kinds = {"random": "random", "always_rest": "always_rest", TEACHER: TEACHER, "learned": "PPO"}
    return {"scenario": scenario, **{kinds[kind]: f"{returns[kind]:.0f}" for kind in kinds}}


def main() -> None:
    """Plays what is missing, then prints or writes the section; --only plays one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs=2, metavar=("SCENARIO", "WAY"))
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-bucket-models"))
    parser.add_argument("--kept", action="store_true", help="play nothing that is missing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    parts = [(scenario, way) for scenario in SCENARIOS for way in WAYS]
    for scenario, way in [tuple(args.only)] if args.only else parts:
        if not args.kept and (scenario, way) not in known():
            play(scenario, way, args.folder)
    if args.only:
        return
    body = report(known())
    print(body)
    if args.write:
        page.write("bucket_models", "python -m benchmarks.quality.bucket_models --write", body)


if __name__ == "__main__":
    main()
