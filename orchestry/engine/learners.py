"""The learner of a run of backend ppo: in one process, or in each one of a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestry.backends.local.model import device_of
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.machine import check_first, launched
from orchestry.core.ppo import PpoConfig
from orchestry.engine.arena import Arena, arena
from orchestry.engine.changes import config_digests, differing, worded
from orchestry.engine.games import (
    last_checkpoint,
    learned_state,
    load_player,
    players_digests,
    policy_from,
)
from orchestry.store.journal import Event
from orchestry.task.setup import option_digests, task_digests
from orchestry.task.vector import Script

if TYPE_CHECKING:
    from orchestry.backends.launch import Processes
    from orchestry.backends.ppo.learner import Learner
    from orchestry.backends.ppo.ranks import ParallelLearner

PROCESSES = "processes"
"""In a checkpoint's event: how many processes wrote it, where it was not one."""


def check_launch(settings: PpoConfig) -> None:
    """Raises ConfigError if this process is not the first, or the games can't be dealt out."""
    here = launched()
    check_first(here)
    if settings.games % here.processes:
        raise ConfigError(
            f"ppo.games is {settings.games}, and {here.processes} processes were launched, each of "
            f"which plays as many: set ppo.games to a multiple of {here.processes}"
        )


def check_alone(what: str) -> None:
    """Raises ConfigError if several processes were launched."""
    if launched().processes > 1:
        raise ConfigError(
            f"{what} takes one process: start it without a launcher, and with ranks=1"
        )


def check_count(events: Sequence[Event]) -> None:
    """Raises ConfigError if the last checkpoint is of another number of processes: each has games
    and random numbers of its own, and goes on with them."""
    last, now = last_checkpoint(events), launched().processes
    before = int(last.state.get(PROCESSES, 1)) if last else now
    if before != now:
        raise ConfigError(
            f"the last checkpoint is of {before} process{'es' if before > 1 else ''}, and {now} "
            f"would go on: {_started(before)}"
        )


def check_steps(settings: PpoConfig, events: Sequence[Event]) -> None:
    """Raises ConfigError if more batches were played than `ppo.steps` asks for."""
    last = last_checkpoint(events)
    played = int(last.state["steps"]) if last else 0
    if settings.steps <= played - settings.games * settings.horizon:
        raise ConfigError(
            f"ppo.steps is {settings.steps:,}, and this run has played {played:,}: give at least "
            "as many, or begin another run"
        )


def _started(processes: int) -> str:
    if processes == 1:
        return "resume with --set ranks=1, without a launcher"
    return (
        f"resume with --set ranks={processes}, or with `torchrun --nproc-per-node {processes} -m "
        "orchestry resume RUN`"
    )


def digests_of(found: Arena) -> dict[str, str]:
    """Of all that a run of backend ppo depends on."""
    config = found.config
    digests = {**config_digests(config), **task_digests(found.task), **players_digests(config)}
    return digests | option_digests(found.task, config.options)


def load_learner(found: Arena, note: Callable[[str], None]) -> Learner:
    """The run's learner, before its first batch, in all processes of the launch."""
    from orchestry.backends.ppo.learner import Learner, Seats

    if launched().processes == 1:
        settings, seed = found.config.ppo, found.config.seed
        others = found.others(settings.games, partial(_pool, settings), "others")
        games = found.games(settings.games, "games")
        seats = Seats(found.learning, others)
        return Learner(games, settings, seats, seed, str(device_of(settings.device)))
    from orchestry.backends.launch import LOAD, joined

    processes = joined()
    processes.warn = note
    processes.tell(LOAD, _follower, found.config)
    learner = _together(processes, lambda: found)
    note(f"{processes.count} processes play and learn together")
    return learner


def begin_as(learner: Learner, found: Arena, source: Path) -> None:
    """Makes a learner, in all processes of a launch, begin as what a run learned.

    Raises ConfigError where that was in games of another shape, or by networks of another kind.
    """
    settings, state = learned_state(load_player(source.expanduser()))
    policy = policy_from(settings, state, learner.games, found.learners, found.config.seed)
    # Values are in units of the scaled returns.
    critics = policy.judges_like(learner.team) and settings.scale == learner.settings.scale
    now = learner.state()
    now["team"] = policy.begun(learner.team, critics)
    scale = {name: state["scale"][name] for name in ("count", "mean", "square")}
    for part in (now, *now.get("ranks", ())):
        if critics:
            part["scale"] |= scale
        for pool in (one for one in part["others"] if "versions" in one):
            pool["versions"] = [now["team"]]  # in place of the weights that were drawn
    learner.restore(now)


def _follower(processes: Processes, config: RunConfig) -> ParallelLearner:
    """The learner of another process than the first, which has told the user all notes."""
    import torch

    torch.set_num_threads(config.ppo.threads)
    return _together(processes, lambda: arena(config, lambda text: None))


def _together(processes: Processes, find: Callable[[], Arena]) -> ParallelLearner:
    """This process's learner, after all have made theirs. If one fails, all raise; ConfigError if
    one has another task or other opponents, as on a machine with other files."""
    made: list[ParallelLearner] = []

    def part() -> dict[str, str]:
        found = find()
        made.append(_share(processes, found))
        return digests_of(found)

    first, *others = processes.together(part)
    for rank, digests in enumerate(others, 1):
        if odd := differing(first, digests):
            raise ConfigError(
                f"process {rank} found other contents of {worded(odd)} than process 0: give all "
                "machines the same files"
            )
    return made[0]


def _share(processes: Processes, found: Arena) -> ParallelLearner:
    """The learner of this process: games, opponents and draws have seeds by its rank."""
    from orchestry.backends.ppo.learner import Seats
    from orchestry.backends.ppo.ranks import ParallelLearner

    settings, rank = found.config.ppo, processes.rank
    share = settings.games // processes.count
    own = ("process", rank) if rank else ()
    opponents = partial(_pool, settings)
    others = found.others(share, opponents, "others", *own, first=rank * share)
    return ParallelLearner(
        processes,
        found.games(share, "games", *own),
        settings,
        Seats(found.learning, others),
        found.config.seed,
        str(device_of(settings.device)),
    )


def _pool(settings: PpoConfig, seats: tuple[int, ...], games: int, seed: int) -> Script:
    from orchestry.backends.ppo.pool import Pool

    return Pool(settings, games, seed)
