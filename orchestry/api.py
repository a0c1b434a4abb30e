"""Python's facade: `train`, `evaluate`, `load_run`, and the Run that they return.

They show the command line's live view. Reading a run loads neither the engine nor numpy. It lies
above all rooms and extensions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from html import escape
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack
from urllib.parse import quote

from orchestry.cli.report import written
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.types import Split
from orchestry.report.text import counted, plain, short
from orchestry.store import run as store
from orchestry.store.progress import MEAN, progress
from orchestry.store.records import Metrics, Summary

if TYPE_CHECKING:
    from pandas import DataFrame

    from orchestry.engine.ask import Answer
    from orchestry.engine.session import Observer
    from orchestry.engine.trust import Trust
    from orchestry.ext.distil.distil import Distilled
    from orchestry.ext.distil.examples import How
    from orchestry.ext.sweep.report import Found
    from orchestry.report.measures import Measures
    from orchestry.report.stats import Interval
    from orchestry.store.checkpoints import Which
    from orchestry.task.vector import Script

_P = ParamSpec("_P")
R = TypeVar("R")
_PLAYED = {"train": "orchestry.engine.run", "evaluate": "orchestry.engine.evaluate"}
SHOWN = 2_000
"""A notebook shows this many characters of the best answer."""


def watched(play: Callable[_P, R]) -> Callable[_P, R]:
    """Shows the command line's live line, unless an observer is given; None shows nothing."""
    place = [*signature(play).parameters].index("observer")

    @wraps(play)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> R:
        if len(args) > place or "observer" in kwargs:
            return play(*args, **kwargs)
        from orchestry.cli.watch import watching

        with watching(verbose=False) as observer:
            kwargs["observer"] = observer
            return play(*args, **kwargs)

    return shown


class Run(store.Run):
    """A run directory: read when asked, resumed, measured, reported and learned from.

    `resume`, `baselines`, `evaluate`, `ask`, `distil` and `export` say on stderr what they do,
    unless `observer` is given; None shows nothing.
    """

    @watched
    def resume(
        self,
        changes: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
        *,
        trust: Trust = False,
        accept: bool = False,
    ) -> Run:
        """Continues this run, as `orchestry resume` does, and returns the continued run.

        `changes` are nested like the config: `{"episodes": 40, "budget": {"usd": 2}}`. `trust`
        accepts the code and servers that the run names. `accept` continues although config.yaml,
        the task or the base changed. Raises ConfigError for what a resume may not change.
        """
        from orchestry.engine.run import resume

        return with_methods(resume(self.folder, changes, observer, trust=trust, accept=accept))

    def policy(self, likeliest: bool = False) -> Script:
        """What a run of backend ppo learned: `policy.act(observations, begun)` gives the actions
        (B, S, H) of B games for the S seats that learned; `begun` (B,) is not looked at.

        Actions are drawn; with `likeliest` each is the likeliest. Raises ConfigError for a run of
        another backend, and before its first checkpoint.
        """
        from orchestry.engine.neural import learned

        return learned(self, likeliest)

    @watched
    def baselines(
        self,
        names: str | Sequence[str] | None = None,
        split: Split = "test",
        samples: int = 10,
        episodes: int | None = None,
        budget_usd: float | None = None,
        observer: Observer | None = None,
        *,
        trust: Trust = False,
    ) -> dict[str, Run]:
        """Plays baselines with this run's task, model and seeds; results are stored in the run.

        `names`: one or more, as in `orchestry baselines list`; None plays all that fit the
        task. Each problem of the split, or of its first `episodes`, is played `samples` times.
        `budget_usd` caps all of them together; None keeps the run's cap. Returns the runs by name,
        up to the one that stopped at the cap. Raises ConfigError for an unknown name.
        """
        from orchestry.engine.evaluate import Baselines, fitting
        from orchestry.engine.session import Silent
        from orchestry.engine.trust import of_run

        names = [names] if isinstance(names, str) else names
        today = {} if budget_usd is None else {"budget": {"usd": budget_usd}}
        note = (observer or Silent()).note
        config = of_run(self.folder, today, trust, note)
        wanted = fitting(config, note) if names is None else names
        asked = Baselines(config, wanted, split, samples, episodes)
        played = asked.play(self.folder / "baselines", observer)
        return {name: with_methods(run) for name, run in zip(asked.names, played, strict=False)}

    @watched
    def ask(
        self,
        given: str | Mapping[str, Any],
        search: bool = False,
        budget_usd: float = 0.25,
        update: Which = None,
        seed: int | None = None,
        observer: Observer | None = None,
        *,
        trust: Trust = False,
    ) -> Answer:
        """Asks the team, with what it learned, for work on a new input, as `orchestry ask` does.

        `given`: a text, or an object such as a line of problems.jsonl (`prompt`, `data`). `search`:
        the run's own search, instead of one pass. `budget_usd`: the cap. `update`: the team after
        that update; None: after the last. `str(answer)` is what the team hands over; `.turns` has
        what each agent wrote, `.reward` the task's reward or None. Raises ConfigError for an input
        that lacks what the task needs, BudgetExceeded at the cap.
        """
        from orchestry.engine.ask import ask

        return ask(
            self,
            given,
            search=search,
            budget_usd=budget_usd,
            update=update,
            seed=seed,
            observer=observer,
            trust=trust,
        )

    @watched
    def evaluate(
        self,
        split: Split = "test",
        update: Which = None,
        samples: int | None = None,
        episodes: int | None = None,
        budget_usd: float | None = None,
        observer: Observer | None = None,
        *,
        task: str | None = None,
        roles: Mapping[str, str] | None = None,
        changes: Mapping[str, Any] | None = None,
        trust: Trust = False,
    ) -> Run:
        """Plays each problem of a held-out split once; results are stored in the run.

        `update`: the team after that update (0: untrained), or the `best` on dev; None: after the
        last. `samples`: so many trajectories per problem instead of the search. `episodes`: only
        the first problems. `budget_usd`: the cap; None keeps the run's. `task`: another task,
        played with what this run learned; `roles`: by role of that task, this run's agent that
        plays it (others by name, or untrained); `changes`: that task's own settings, such as
        `{"options": {"bank": "arxiv"}}`. A second call goes on, or returns its results. Two of
        these are compared by `gain`. Raises ConfigError for an update, task, role or agent that
        does not exist, and for a run of backend ppo.
        """
        from orchestry.engine.evaluate import evaluate

        return with_methods(
            evaluate(
                self,
                split,
                budget_usd,
                observer,
                update,
                samples,
                episodes,
                task=task,
                roles=roles,
                changes=changes,
                trust=trust,
            )
        )

    @watched
    def distil(
        self,
        into: str | Path | None = None,
        others: Sequence[store.Run | str | Path] = (),
        config: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
        *,
        trust: Trust = False,
        **how: Unpack[How],
    ) -> Distilled:
        """Fine-tunes a local team on the best answers of this run and `others`, as
        `orchestry distil` does.

        `into`: a new folder; None: `runs/TASK--distil--TIME--ID`. `config`: settings of the team,
        nested like a run's, such as `{"learn": {"rank": 8}}`. `how`: which answers and how they are
        learned, the command's flags: `method`, `gold`, `by`, `top`, `min_reward`, `epochs` and so
        on. A run of backend ppo is the `teacher`: its policy plays, and the team learns what it
        does. `load_run(found.run)` is the team as a run; `found.held_out` has each agent's loss in
        nats per token before and after. Raises ConfigError for runs that can't be learned from,
        before anything is learned.
        """
        from orchestry.engine.session import Silent
        from orchestry.ext.distil.distil import distil

        note = (observer or Silent()).note
        if not self.neural:
            return distil([self, *others], into, config=config, note=note, trust=trust, **how)
        if "teacher" in how:
            raise ConfigError(
                f"{self.folder} is a run of backend ppo, so it is the teacher: leave out teacher="
            )
        how["teacher"] = str(self.folder)
        return distil(others, into, config=config, note=note, trust=trust, **how)

    @watched
    def export(
        self,
        folder: str | Path | None = None,
        merge: bool = False,
        agents: Sequence[str] = (),
        update: Which = None,
        form: Literal["openai", "hf", "inspect"] | None = None,
        observer: Observer | None = None,
        *,
        trust: Trust = False,
        **how: Unpack[How],
    ) -> Path:
        """Writes what the team learned for use elsewhere, as `orchestry export` does; returns the
        folder, of an eval log the file.

        `folder`: a new one; None: in the run's `export`. Of backend local one adapter per agent,
        with `merge` whole models, of `agents` only; of backend api the prompts. `update` as in
        `evaluate`. `form`: the best answers as chats instead, chosen by `how` as in `distil`, or
        all trajectories as an eval log. Raises ConfigError for options that do not go together.
        """
        from orchestry.cli.export import exported, folder_of
        from orchestry.engine.session import Silent

        found = exported(
            self.folder,
            None if folder is None else Path(folder),
            merge=merge,
            agents=agents,
            update=update,
            note=(observer or Silent()).note,
            trust=trust,
            form=form,
            **how,
        )
        return folder_of(found)

    def sweep(
        self,
        keys: Mapping[str, Any],
        folder: str | Path | None = None,
        *,
        trust: bool = False,
        **how: Any,
    ) -> Found:
        """Searches settings with Optuna, as `orchestry sweep` does: each trial is a run with this
        run's config and other values of `keys`.

        `keys`: config keys and what is tried for them, such as `{"learn.learning_rate": {"low":
        1e-4, "high": 1e-3, "log": True}, "learn.group_size": [4, 8]}`. `folder`: the sweep's; None:
        `sweeps/NAME` of the run's folder. `how`: the other keys of a sweep's file: `trials`,
        `seeds`, `measure`, `confirm`, `budget_usd` (of all of it, 5 dollars unless told) and so on.
        A second call goes on. `found.whole` has the trials with a value, the best first; its folder
        has best.yaml and a report. Raises ConfigError for keys that can't be tried, and without
        Optuna; OrchestryError if three trials in a row fail.
        """
        from orchestry.ext.sweep.cli import swept
        from orchestry.ext.sweep.settings import sweep_of
        from orchestry.ext.sweep.sweep import as_trials

        raw = {"run": as_trials(self), "keys": keys, **how}
        place = Path("sweeps") / self.folder.name if folder is None else Path(folder)
        return swept(sweep_of(raw, "the sweep"), place, self.folder, trust)

    def report(self, *others: store.Run | str | Path, out: str | Path | None = None) -> Path:
        """Writes what `orchestry report` writes; returns the path of RESULTS.md.

        Without `out`, the report is in the run's folder `report`. `others` are runs to compare
        with; they need `out`.
        """
        folders = [
            other.folder if isinstance(other, store.Run) else Path(other) for other in others
        ]
        _, found = written([self.folder, *folders], None if out is None else Path(out))
        return found.files[0]

    def measured(self) -> Measures | None:
        """The run's figures with 95 % intervals over problems; None without an episode."""
        from orchestry.report.measures import measured

        return measured(self)

    def gain(self, other: store.Run) -> Interval | None:
        """This run's reward minus another's, paired over common problems, with a 95 % interval;
        None if they have no problem in common."""
        from orchestry.report.measures import gain

        return gain(self, other)

    def to_pandas(self) -> DataFrame:
        """One row per episode, failed ones left out; of backend ppo one per batch, with the figures
        of progress.jsonl.

        It has the columns of metrics.jsonl, such as reward (the mean over the episode's
        trajectories), best_of_k, `part/NAME`, `tag/NAME`, calls and usd, and the problem, split,
        seed, tokens and failed calls.

        Raises ConfigError if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError(f"pandas is not installed: `{install('pandas')}`") from None
        if self.neural:
            return pandas.DataFrame(progress(self.folder))
        figures, rows = Metrics(), []
        for one in self.episodes:
            keys = ("problem", "split", "seed", "input_tokens", "output_tokens", "failed_calls")
            rows.append(figures.row(one) | {key: getattr(one, key) for key in keys})
        frame = pandas.DataFrame(rows)
        tags = [name for name in frame if name.startswith("tag/")]
        return frame.fillna(dict.fromkeys(tags, 0.0))  # no trajectory of this episode has the tag

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self._said()}>"

    def _repr_html_(self) -> str:
        """The run as a table, in a notebook."""
        try:
            rows = [*_figures(self.summary), *self._best()]
        except OrchestryError as error:
            rows = [("state", escape(str(error)))]
        cells = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows)
        return f"<table><caption>{escape(str(self.folder))}</caption>{cells}</table>"

    def _said(self) -> str:
        """The run in a few words."""
        try:
            found = self.summary
        except OrchestryError:
            return "unfinished"
        if self.neural:
            steps, mean = found.learning.get("steps", 0), found.learning.get(MEAN)
            came_to = "no game has ended" if mean is None else f"return {short(mean)}"
            return f"{found.task}, {steps:,.0f} steps, {came_to}, {found.stopped}"
        figures = (_number(found.mean_reward), f"${found.cost_usd:.4f}", found.stopped)
        played = f"{found.task}, {found.episodes} of {counted(found.episodes_asked, 'episode')}"
        return ", ".join((played, f"reward {figures[0]}", *figures[1:]))

    def _best(self) -> list[tuple[str, str]]:
        """A link to the best answer: in the report's page if there is one, else in its file."""
        if self.neural or (best := self.best) is None:
            return []
        page = self.folder / "report" / "index.html"
        place = page if page.is_file() else self.folder / "episodes.jsonl"
        href = quote(Path(os.path.relpath(place)).as_posix())
        href += f"#run=0&amp;episode={best.episode}" if place == page else ""
        head = f'<a href="{href}">episode {best.episode}, {escape(best.problem)}</a>'
        text = plain(best.best_node.turns[-1].completion.told)[:SHOWN]
        return [("best answer", f"{head}<pre>{escape(text)}</pre>")]


def load_run(path: str | Path) -> Run:
    """Reads a run directory; raises ConfigError if there is none, StoreError for damage."""
    return Run(store.existing(Path(path)))


def with_methods(run: store.Run) -> Run:
    """The same directory as a Run, with its methods for notebooks."""
    return Run(run.folder)


def _figures(found: Summary) -> list[tuple[str, str]]:
    if found.backend == "ppo":
        from orchestry.cli.show import stepped  # rich

        return [("task", escape(found.task)), *stepped(found), ("ended", found.stopped)]
    cap = "no cap" if found.budget_usd is None else f"of ${found.budget_usd:g}"
    return [
        ("task", escape(found.task)),
        ("model", escape(f"{found.provider}/{found.model}")),
        ("episodes", f"{found.episodes} of {found.episodes_asked}, {found.stopped}"),
        ("reward", _number(found.mean_reward)),
        ("best of k", _number(found.best_of_k)),
        ("calls", f"{found.calls}, and {found.cache_hits} from the cache"),
        ("cost", f"${found.cost_usd:.4f} {cap}"),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _returned(play: Callable[_P, store.Run]) -> Callable[_P, Run]:
    """Returns a Run, with its methods for notebooks."""

    @wraps(play)
    def returned(*args: _P.args, **kwargs: _P.kwargs) -> Run:
        return with_methods(play(*args, **kwargs))

    return returned


if TYPE_CHECKING:
    from orchestry.engine import evaluate as evaluation
    from orchestry.engine import run as engine

    train = _returned(watched(engine.train))
    evaluate = _returned(watched(evaluation.evaluate))
else:

    def __getattr__(name: str) -> Any:
        """`train` and `evaluate`, which load the engine."""
        if name not in _PLAYED:
            raise AttributeError(f"module 'orchestry.api' has no attribute '{name}'")
        play = getattr(import_module(_PLAYED[name]), name)
        found = globals()[name] = _returned(watched(play))
        return found
