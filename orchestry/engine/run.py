"""Runs, from config to summary: train and resume.

A run is checked as far as possible before its directory is made. From then on the journal keeps
everything that was paid for.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from orchestry.backends import as_trained, open_backend
from orchestry.backends.base import Opening
from orchestry.core.concurrency import heeding
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, OrchestryError, too_long
from orchestry.core.types import Tools
from orchestry.engine.changes import check_changes, ground_of
from orchestry.engine.curriculum import check
from orchestry.engine.executors import placed
from orchestry.engine.games import players_digests, seat_policy
from orchestry.engine.manifest import fruitless, stop_reason
from orchestry.engine.plan import Plan
from orchestry.engine.regime import recipe
from orchestry.engine.scores import Verdicts
from orchestry.engine.session import Observer, Session, Silent, Work
from orchestry.engine.trust import Trust, of_run, remember
from orchestry.rollout.rollout import task_rater
from orchestry.store.checkpoints import DISTILLED, goes_on
from orchestry.store.journal import Opened, Stopped
from orchestry.store.recipes import recipe_in
from orchestry.store.run import Run, Store, existing, load_run, read_config
from orchestry.store.trackers import check_trackers
from orchestry.task.given import leave_unscored, unscorable
from orchestry.task.programs.agent_task import AgentTask
from orchestry.task.programs.command import check_command
from orchestry.task.setup import Setup, set_up

_T = TypeVar("_T")


def train(
    config: RunConfig | Mapping[str, Any],
    run_dir: str | Path | None = None,
    observer: Observer | None = None,
) -> Run:
    """Runs a config, or its plain data such as `{"task": "tldr"}`, to its end; returns the run.

    A run that stops at its budget or at Ctrl-C is returned too, with the reason in
    `run.summary.stopped`. Of a recipe, the run of its last stage is returned. `orchestry.train`
    shows a live line on stderr; with `observer=None` it shows nothing. Raises ConfigError before
    anything is written or spent. After any other OrchestryError the run can be resumed. Works
    inside a running event loop (notebooks).
    """
    config = config if isinstance(config, RunConfig) else validate(config)
    watch = observer or Silent()
    kind = "+".join(config.recipe.steps) or config.backend
    folder = Path(run_dir) if run_dir else new_run_folder(f"{config.task}--{kind}")
    _check_name(folder)
    if config.recipe.steps:
        return recipe().begin(config, folder, watch)  # which calls this for each stage
    journal = folder / "journal.jsonl"
    if journal.exists() and journal.stat().st_size:
        raise ConfigError(
            f"{folder} holds a run: `orchestry resume {folder}`, or choose another --run-dir"
        )
    if config.backend == "ppo":
        from orchestry.engine.neural import begin  # torch and numba are not everybody's

        return begin(config, folder, watch)
    return run_plan(prepare(config, watch.note), folder, watch)


def resume(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    *,
    trust: Trust = False,
    accept: bool = False,
) -> Run:
    """Continues a run; `changes` are nested like the config, for keys marked as resumable.

    Raises ConfigError for other keys, for untrusted code or servers of other people, and if
    config.yaml, the task or the base has changed. `accept` accepts such changes (the journal
    records them) and a journal that lost its end.
    """
    watch = observer or Silent()
    if recipe_in(Path(folder)):
        own = {"trust": trust, "accept": accept}
        return recipe().resume(Path(folder), changes or {}, watch, **own)
    place = existing(Path(folder))
    before = read_config(place)
    if (place / DISTILLED).exists():
        raise ConfigError(
            f"{place} is a distilled team, and no episodes were played in it: begin a run with its "
            f"weights, `{goes_on(place)}`"
        )
    check_changes(changes or {}, str(before.get("backend")))
    config = of_run(place, changes, trust, watch.note)
    if config.backend == "ppo":
        from orchestry.engine.neural import go_on

        return go_on(config, place, watch, accept)
    return run_plan(prepare(config, watch.note, folder=place), place, watch, accept)


def prepare(
    config: RunConfig,
    note: Callable[[str], None] = lambda text: None,
    environ: Mapping[str, str] = os.environ,
    need_key: bool = True,
    folder: Path | None = None,
    held_out: bool = False,
) -> Plan:
    """Makes all checks that cost nothing; raises ConfigError or TaskError.

    `folder` holds the run to continue. `held_out`: at most one episode per problem.
    """
    _refuse_keys(config, environ)
    if config.recipe.steps:
        raise ConfigError(
            "a recipe is several runs, and only `orchestry run` plays it: leave out recipe"
        )
    check_trackers(config.trackers, login=need_key)
    ready = set_up(as_trained(config, folder), note, seat_policy, held_out)
    backend = open_backend(ready.config, ready.task, environ, need_key, folder)
    check(ready.config, ready.problems, backend.every)
    for text in backend.notes:
        note(text)
    unscored = _settle_reward(ready, note) if config.problem is not None else ""
    if need_key and isinstance(ready.task, AgentTask) and ready.task.command:
        check_command(ready.task.command)
    digests = {**ready.digests, **players_digests(ready.config)}
    return Plan(ready.task, ready.problems, backend, digests, unscored)


def _settle_reward(ready: Setup, note: Callable[[str], None]) -> str:
    """Plays a given problem without a reward if the task can't compute it; returns why."""
    why = in_own_loop(unscorable(ready.task, ready.problems[0], ready.config))
    if why:
        leave_unscored(ready.task)
        note(f"no reward for this input: {why}")
    return why


def _refuse_keys(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Raises ConfigError if the config, which is written to disk, holds an API key of the
    environment."""
    text = config.to_yaml()
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY"):
        key = environ.get(name, "").strip()
        if len(key) >= 8 and key in text:
            raise ConfigError(f"the config holds the value of {name}: no config key takes a key")


def new_run_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/<name>--<UTC time>--<id>`."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return root / f"{name}--{stamp}--{secrets.token_hex(2)}"


def _check_name(folder: Path) -> None:
    """Raises ConfigError for a path that can't be a run directory."""
    if any(len(os.fsencode(part)) > 255 for part in folder.parts):
        raise too_long(OSError(errno.ENAMETOOLONG, "", max(folder.parts, key=len)))
    place = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), None)
    if place is not None and not place.is_dir():
        raise ConfigError(f"{place} is not a directory: choose another --run-dir than {folder}")
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(
            f"{str(folder)!a} is not a UTF-8 name: choose another --run-dir"
        ) from None


def run_plan(plan: Plan, folder: Path, watch: Observer, accept: bool = False) -> Run:
    """Plays a plan into a folder; raises the OrchestryError that ended it."""
    remember(plan.config, folder)
    failure = in_own_loop(_play(plan, folder, watch, accept))
    if failure is not None and stop_reason(failure) == "failed":
        raise failure
    return load_run(folder)


def in_own_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs the coroutine in a new event loop; in a thread if a loop is already running."""
    if not _in_loop():
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _play(plan: Plan, folder: Path, watch: Observer, accept: bool) -> OrchestryError | None:
    with Store(folder, shortened=accept) as store:
        session, ground = Session(plan, store, watch), ground_of(plan, store, accept)
        store.write("config.yaml", plan.backend.kept_config(store).to_yaml())
        failure = await drive(session, ground)
    if failure is not None and stop_reason(failure) != "failed":
        watch.note(str(failure))
    return failure


async def drive(work: Work, ground: Mapping[str, Any] | None = None) -> OrchestryError | None:
    """Opens the resources, does the work, and writes a summary whatever stops it; returns the
    failure. `ground` describes what this process runs on, for the journal."""
    start, plan, store = time.monotonic(), work.plan, work.store
    async with placed(plan.config) as sandbox:
        work.tools = Tools(sandbox)
        rater = task_rater(plan.task, work.tools)
        rate = Verdicts(rater, store.journal, store.events, work.faults)
        async with plan.backend.open(Opening(store, plan.task, rate, work.tools, work.note)):
            store.journal.append(_opened(plan, ground or {}))
            work.begin(sandbox.level)
            if unfit := await _unfit(plan, work.tools):
                work.note(unfit)
            with heeding(work.interrupt):
                await work.play(rate)
    failure = work.failure or fruitless(plan, store.episodes.values())
    reason = stop_reason(failure)
    work.sum_up(reason, time.monotonic() - start)
    store.journal.append(Stopped(reason=reason, at=time.time()))
    store.journal.sync()
    return failure


async def _unfit(plan: Plan, tools: Tools) -> str:
    """Which problems no answer can solve, and why."""
    asked = {problem.id: problem for problem in plan.problems}.values()
    found = await asyncio.gather(*(plan.task.unfit(problem, tools) for problem in asked))
    named = [f"{one.id} ({why})" for one, why in zip(asked, found, strict=True) if why]
    if not named:
        return ""
    return (
        f"{len(named)} of {len(asked)} problems can't be solved, because their own solution fails "
        f"here: {', '.join(named)}; leave them out, or mend them"
    )


def _opened(plan: Plan, ground: Mapping[str, Any]) -> Opened:
    backend = plan.backend
    return Opened(
        at=time.time(),
        provider=backend.provider.name,
        model=backend.provider.model,
        calibration=backend.corrects,
        providers=backend.gateway.providers,
        **ground,
    )
