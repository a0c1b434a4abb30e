"""Runs, from config to summary: train and resume.

Everything that can be wrong with a run is checked before its directory is made; from then on,
whatever happens, what was paid for stands in the journal.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from orchestry.backends import open_backend
from orchestry.core.concurrency import heeding
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, OrchestryError, TaskError, too_long, unknown
from orchestry.core.types import AgentSpec, Problem, Tools
from orchestry.engine.changes import changed, check_changes, config_digests, task_digests, worded
from orchestry.engine.manifest import fruitless, stop_reason
from orchestry.engine.plan import Plan
from orchestry.engine.scores import Verdicts
from orchestry.engine.session import Observer, Session, Silent, Work
from orchestry.engine.trust import Trust, of_run, remember
from orchestry.rollout.rollout import task_rater
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Opened, Stopped
from orchestry.store.run import Run, Store, existing, load_run, read_config
from orchestry.store.trackers import check
from orchestry.task.arrangements import ALONE, arranged, check_first_state
from orchestry.task.base import BaseTask, TeamTask
from orchestry.task.guard import count_stages, task_boundary
from orchestry.task.registry import bundled, folder_of, load_task

T = TypeVar("T")


def train(
    config: RunConfig, run_dir: str | Path | None = None, observer: Observer | None = None
) -> Run:
    """Runs a config to its end and returns the run.

    A run that stops at its budget or at Ctrl-C is returned too: `run.summary.stopped` says why.
    `orchestry.train` shows a live line on stderr; with `observer=None` it shows nothing. Raises
    ConfigError before anything is written or spent; any other OrchestryError leaves a
    directory that can be resumed. Works inside a running event loop (notebooks).
    """
    watch = observer or Silent()
    folder = Path(run_dir) if run_dir else new_folder(f"{config.task}--{config.backend}")
    _check_name(folder)
    journal = folder / "journal.jsonl"
    if journal.exists() and journal.stat().st_size:
        raise ConfigError(
            f"{folder} holds a run: `orchestry resume {folder}`, or choose another --run-dir"
        )
    return run_plan(prepare(config, watch.note), folder, watch)


def resume(
    folder: str | Path,
    changes: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    *,
    trust: Trust = False,
    accept: bool = False,
) -> Run:
    """Goes on with a run; `changes`, nested like the config, are of keys marked as resumable.

    Raises ConfigError for any other change, where the run names code or servers of others that are
    not to be trusted, and where config.yaml, the task or the base were changed since, unless that
    is accepted; the journal then says so. `accept` also accepts a journal that lost its end.
    """
    watch, place = observer or Silent(), existing(Path(folder))
    before = read_config(place)
    check_changes(changes or {}, str(before.get("backend")))
    config = of_run(place, changes, trust, watch.note)
    return run_plan(prepare(config, watch.note, folder=place), place, watch, accept)


def prepare(
    config: RunConfig,
    note: Callable[[str], None] = lambda text: None,
    environ: Mapping[str, str] = os.environ,
    need_key: bool = True,
    folder: Path | None = None,
    held_out: bool = False,
) -> Plan:
    """Checks all that can be checked without spending; raises ConfigError or TaskError.

    `folder` holds the run that is continued. `held_out`: at most one episode per problem.
    """
    _refuse_keys(config, environ)
    check(config.trackers, login=need_key)
    task = load_task(config.task, config.task_path, config.weights, config.options, warn=note)
    digests, home = task_digests(task), folder_of(task)
    known = (bundled("tasks"), *config.task_path)
    if home and home.parent not in [path.resolve() for path in known]:  # it was in ./tasks
        shelves = (*config.task_path, home.parent)
        config = config.model_copy(update={"task_path": shelves})
    _give_agents(task, config)
    config, task = arranged(config, task)
    with task_boundary(task, "problems"):
        problems = tuple(task.problems(config.split))
    if not problems:
        raise ConfigError(
            f"task {config.task} has no problems in split '{config.split}': add some, or choose "
            "another with --set split=..."
        )
    if held_out:
        config = config.model_copy(update={"episodes": min(config.episodes, len(problems))})
    _check_ids(config, problems)
    count_stages(task, problems[0])  # a task that never ends would spend without end
    check_first_state(config, task, problems[0])
    backend = open_backend(config, task, environ, need_key, folder)
    for text in backend.notes:
        note(text)
    return Plan(task, problems, backend, digests)


def _give_agents(task: BaseTask[Any], config: RunConfig) -> None:
    """Gives the task the goals and prompts that the config has for its agents; where the task has
    `open_roles`, the config's list of agents is its team. Raises ConfigError for an unknown role.
    """
    known = {spec.role: spec for spec in task.agents}
    if config.team and isinstance(task, TeamTask) and task.open_roles:
        known = {role: known.get(role, AgentSpec(role=role)) for role in config.team}
    for role in config.agents:
        alone = config.baseline == "fixed" and role == ALONE  # resolved by an earlier process
        if role not in known and not alone:
            raise ConfigError(unknown(f"agent of task {task.name}", role, [*known]))
    team = tuple(
        spec.model_copy(update=config.agents[role].said) if role in config.agents else spec
        for role, spec in known.items()
    )
    if team != tuple(task.agents):
        vars(task)["agents"] = team


def _check_ids(config: RunConfig, problems: Sequence[Problem]) -> None:
    """Raises TaskError for an id that two problems have: comparisons pair problems by their ids."""
    places = dict[str, int]()
    for place, problem in enumerate(problems):
        if (first := places.setdefault(problem.id, place)) != place:
            raise TaskError(
                f"task {config.task}: problems {first} and {place} of split '{config.split}' have "
                f"the same id '{problem.id}': give each problem an id of its own"
            )


def _refuse_keys(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a config that holds this environment's API key: it goes to disk."""
    text = config.to_yaml()
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY"):
        key = environ.get(name, "").strip()
        if len(key) >= 8 and key in text:
            raise ConfigError(f"the config holds the value of {name}: no config key takes a key")


def new_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/<name>--<UTC time>--<id>`."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return root / f"{name}--{stamp}--{secrets.token_hex(2)}"


def _check_name(folder: Path) -> None:
    """Raises ConfigError for a run directory that can't be one."""
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
    """Plays a plan into a folder; raises the OrchestryError that it failed by."""
    remember(plan.config, folder)
    failure = in_own_loop(_play(plan, folder, watch, accept))
    if failure is not None and stop_reason(failure) == "failed":
        raise failure
    return load_run(folder)


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs it in an event loop of its own, in a thread where one runs already."""
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
        ground = _ground(plan, store, accept)
        store.write("config.yaml", plan.backend.kept_config(store).to_yaml())
        failure = await drive(Session(plan, store, watch), ground)
    if failure is not None and stop_reason(failure) != "failed":
        watch.note(str(failure))
    return failure


async def drive(work: Work, ground: Mapping[str, Any] | None = None) -> OrchestryError | None:
    """Opens all that the work holds, does it, and leaves a summary whatever stopped it, which is
    returned. `ground` is what this process runs on, for the journal."""
    start, plan, store = time.monotonic(), work.plan, work.store
    unsafe = plan.config.allow_unsafe_code
    async with open_sandbox(plan.config.sandbox, allow_unsafe=unsafe) as sandbox:
        rater = task_rater(plan.task, Tools(sandbox))
        rate = Verdicts(rater, store.journal, store.events, work.faults)
        async with plan.backend.open(store, plan.task, rate, work.note):
            store.journal.append(_opened(plan, ground or {}))
            work.begin(sandbox.level)
            with heeding(work.interrupt):
                await work.play(rate)
    failure = work.failure or fruitless(plan, store.episodes.values())
    reason = stop_reason(failure)
    work.sum_up(reason, time.monotonic() - start)
    store.journal.append(Stopped(reason=reason, at=time.time()))
    store.journal.sync()
    return failure


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


def _ground(plan: Plan, store: Store, accept: bool) -> dict[str, Any]:
    """What this process runs on, for the journal; raises ConfigError where it isn't what the
    process before ran on, and nobody accepts that."""
    digests = {**config_digests(plan.config), **plan.digests, **plan.backend.digests()}
    found = changed(store.events, digests)
    if found and not accept:
        raise ConfigError(
            f"{store.folder} was played with other contents of {worded(found)}: put that back, or "
            f"accept the new ones: `orchestry resume {store.folder} --accept-changes`"
        )
    return {"digests": digests, "accepted": tuple(found)}
