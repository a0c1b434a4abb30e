"""Asks the team of a run, as it has learned so far, for work on a new input.

An ask is a small run of one episode in `RUN/asks`, with a journal, a ledger and a cap of its own.
The same ask again continues there, or returns its answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from orchestry.backends import backend_of
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import (
    BudgetExceeded,
    ConfigError,
    Interrupted,
    OrchestryError,
    ServerAway,
    reason,
)
from orchestry.core.resolve import merge
from orchestry.core.secrets import looks_like_key
from orchestry.core.types import TASK_ERROR, utf8
from orchestry.engine.evaluate import play_measurement
from orchestry.engine.plan import Plan
from orchestry.engine.run import prepare
from orchestry.engine.session import Observer, Silent
from orchestry.engine.trust import Trust, of_run
from orchestry.rollout.rollout import TOLD_CHARS
from orchestry.store.checkpoints import Which, chosen_update
from orchestry.store.measurements import ASKS
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, check_texts, load_run
from orchestry.task.base import BaseTask
from orchestry.task.given import UNSCORED
from orchestry.task.guard import task_boundary

BUDGET_USD = 0.25
"""The cap of one ask."""
MAX_LEVELS = 64
"""An input's data nest at most this deep: journal and config must hold them."""
_ONE_PASS: dict[str, Any] = {
    "search": {"strategy": "chains", "k_samples": 1, "joint": "aligned"},
    "judge": {"enabled": False},
}
_QUIET: dict[str, Any] = {
    "episodes": 1,
    "passes": None,
    "credit": {"share": 0.0},
    "curriculum": "none",
    "trackers": {"tensorboard": False, "wandb": "off"},
}
_STOPS = {"budget": BudgetExceeded, "away": ServerAway, "interrupted": Interrupted}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a team answered; as text, what it hands over."""

    text: str
    """What the task says that its team delivers, else the texts of the last stage."""
    turns: tuple[tuple[str, str], ...]
    """Each agent's role and text, in the order of turns; of a search, those of the best one."""
    reward: float | None
    """None if the task can't compute it for this input."""
    feedback: str
    """What the task says about the work; '' without a reward."""
    update: int
    """The team's last update; 0 if it has learned nothing."""
    run: Run
    """The ask's own run directory."""

    def __str__(self) -> str:
        return self.text


def ask(
    run: Run | str | Path,
    given: str | Mapping[str, Any],
    *,
    search: bool = False,
    budget_usd: float = BUDGET_USD,
    update: Which = None,
    seed: int | None = None,
    observer: Observer | None = None,
    patience_s: float | None = None,
    task_path: Sequence[Path] = (),
    trust: Trust = False,
) -> Answer:
    """The answer of a run's team to a new input, with what it learned in its prompts or weights.

    `given`: the text of a problem, or an object as in problems.jsonl: `prompt`, and `data` where
    the task needs them. Every agent acts once in each of its turns; with `search`, the run's own
    search finds the best of several trajectories. `budget_usd`: the cap. `update`: the team after
    that update (0: untrained), or the `best` on dev; None: after the last. `seed`: another one
    gives another answer. The rest is as in `evaluate`.

    Raises ConfigError for an input that does not fit the task, and for a search that could not
    compare its results. Raises BudgetExceeded at the cap; the same call with a larger one goes on.
    """
    source, watch = load_run(run.folder if isinstance(run, Run) else run), observer or Silent()
    check_texts(source)
    today = _today(budget_usd, patience_s, task_path)
    own = of_run(source.folder, today, trust, watch.note)
    learned = chosen_update(source, update)
    problem = _problem(given)
    asked = {"problem": problem, "seed": own.seed if seed is None else seed}
    number = learned.update if learned else 0
    folder = source.folder / ASKS / _name({**asked, "update": number, "search": search})
    left = backend_of(own).as_left(source, learned, folder)
    config = validate({**merge(merge(own.plain(), left), _how(own, search)), **asked})
    plan = _planned(config, search, watch.note)
    found = play_measurement(plan, folder, watch)
    return _answer(plan, found, number)


def _today(
    budget_usd: float, patience_s: float | None, task_path: Sequence[Path]
) -> dict[str, Any]:
    """The keys that the caller gives, nested like the config."""
    found: dict[str, Any] = {"budget": {"usd": budget_usd}}
    if patience_s is not None:
        found["retry"] = {"patience_s": patience_s}
    if task_path:
        found["task_path"] = [str(path) for path in task_path]
    return found


def _problem(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Raises ConfigError for an empty input, one that can't be stored, or one with a secret: it is
    written to disk."""
    if not isinstance(given, str | Mapping):
        raise ConfigError(
            f"the input is of type {type(given).__name__}: give a text, or a dict with prompt and, "
            "where the task needs it, data"
        )
    found = {"prompt": given} if isinstance(given, str) else dict(given)
    if _deeper(found, MAX_LEVELS):
        raise ConfigError(
            f"the input's data nest deeper than {MAX_LEVELS} levels: give them with fewer"
        )
    try:
        text = json.dumps(found, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the input can't be written as JSON ({reason(error)}): give data of texts, numbers, "
            "lists and dicts"
        ) from None
    if utf8(text) != text:
        raise ConfigError(
            "the input is no valid Unicode (it holds half of a surrogate pair, or bytes that are "
            "not UTF-8): give a text in UTF-8"
        )
    if looks_like_key(text):
        raise ConfigError("the input holds what looks like an API key: remove it")
    if not str(found.get("prompt", "")).strip():
        raise ConfigError(
            "the input has no text: give one, or a JSON object with prompt and, where the task "
            "needs it, data"
        )
    return found


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value nests deeper than that."""
    inner = value.values() if isinstance(value, Mapping) else value
    if not isinstance(inner, list | tuple | ValuesView):
        return False
    return not levels or any(_deeper(one, levels - 1) for one in inner)


def _name(asked: Mapping[str, Any]) -> str:
    """The same ask has the same folder."""
    text = json.dumps(asked, sort_keys=True, default=str)
    return blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def _how(own: RunConfig, search: bool) -> dict[str, Any]:
    """One pass, or the run's own search."""
    if search:
        return _QUIET
    group = {"learn": {"group_size": 1}} if own.backend == "local" else {}
    return {**_QUIET, **_ONE_PASS, **group}


def _planned(config: RunConfig, search: bool, note: Callable[[str], None]) -> Plan:
    """Where a search has no reward to compare by, the run's judge rates every sibling set. Raises
    ConfigError if there is none, or if it would see too little."""
    plan = prepare(config, note, held_out=True)
    if not (search and plan.unscored):
        return plan
    if not plan.config.judge.enabled or plan.config.search.strategy != "beam":
        raise ConfigError(
            f"a search has nothing to choose by: the task can't compute this input's reward "
            f"({plan.unscored}), and the run has no judge that rates a beam search: leave out "
            "--search, or give what the reward needs"
        )
    note("the judge chooses instead")
    return prepare(validate(merge(config.plain(), {"judge": {"when": "always"}})), held_out=True)


# --- the answer -----------------------------------------------------------------------------------


def _answer(plan: Plan, run: Run, update: int) -> Answer:
    """Raises OrchestryError if the ask stopped before it had one."""
    if not run.episodes:
        stopped = run.summary.stopped
        again = " with a larger --budget" if stopped == "budget" else ""
        why = run.failed[0].failed if run.failed else f"stopped: {stopped}"
        raise _STOPS.get(stopped, OrchestryError)(
            f"{run.folder} has no answer yet ({why}): the same command{again} goes on"
        )
    record = run.episodes[0]
    path = record.path(record.best)
    stages = [[(turn.agent, turn.completion.text) for turn in node.turns] for node in path]
    score = record.best_node.score
    scored = UNSCORED not in score.tags
    return Answer(
        text=(TASK_ERROR not in score.tags and _delivered(plan, record)) or _last(stages[-1]),
        turns=tuple(turn for stage in stages for turn in stage),
        reward=score.total if scored else None,
        feedback=score.feedback if scored else "",
        update=update,
        run=run,
    )


def _last(stage: Sequence[tuple[str, str]]) -> str:
    """The texts of a stage: alone, or under the names of those who acted at once."""
    if len(stage) == 1:
        return stage[0][1]
    return "\n\n".join(headed(role, text) for role, text in stage)


def headed(role: str, text: str) -> str:
    """A text under the name of its author."""
    return f"## {role}\n\n{text}"


def _delivered(plan: Plan, record: EpisodeRecord) -> str:
    """What the task makes of the best trajectory's texts."""
    task: BaseTask[Any] = plan.task
    problem = plan.problem(0)
    with task_boundary(task, "delivered", problem):
        state, score = task.reset(problem, record.seed), record.nodes[0].score
        for node in record.path(record.best):
            score = score.model_copy(update={"feedback": score.feedback[:TOLD_CHARS]})
            known = task.told(state, score) if score.parts else state
            state = task.step(known, {turn.agent: turn.completion.action for turn in node.turns})
            score = node.score
        return task.delivered(state)
