"""The local backend: LoRA agents on weights of this machine, trained by MAGRPO gradients.

Task, reward, rollout and journal are the same as in every run. Two things differ: the team's own
weights answer, with all episodes of an update in lockstep, and an update is one policy-gradient
step.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestry.backends.base import NO_KEYS, Backend, Evaluation, Opening, Update
from orchestry.backends.gpu import gpu_watch
from orchestry.backends.library import IN_RUN, Library, empty_library, read_library, to_yaml
from orchestry.backends.local.credit import Counterfactuals, counterfactuals
from orchestry.backends.local.dev import DevEvaluations, dev_problems, empty_updates, leftover
from orchestry.backends.local.diagnostics import Learnt, drawn
from orchestry.backends.local.drawing import Drawing
from orchestry.backends.local.groups import group_sizes
from orchestry.backends.local.lockstep import InStep, Lockstep
from orchestry.backends.local.model import gpu_name, require_installed, slow_half
from orchestry.backends.local.ratings import hear, late_ones, notes
from orchestry.backends.local.settings import as_chains, model_of, refuse, trees
from orchestry.backends.local.weights import ADAPTER, FULL, START, Weights, starting, team_of
from orchestry.backends.programs import for_program
from orchestry.backends.prompted import KEPT, check_size, for_roles, keep, shown, with_source
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, LearnError, StoreError
from orchestry.core.files import refused
from orchestry.core.types import Member, Problem, Rate, Tree
from orchestry.judge.calibration import Calibration, calibration, judged_pairs
from orchestry.models.names import critics_by_names
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.schedule import Chains, Schedule, branching
from orchestry.store.checkpoints import check_files, checkpoint, file_digests
from orchestry.store.journal import Evaluated, Learned, Rated, ratings
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, Store
from orchestry.task.base import BaseTask

if TYPE_CHECKING:
    from orchestry.backends.local.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning(InStep):
    """A rollout for learning: keeps the tree, with the counterfactual replays for credit."""

    keep: Callable[[Tree[Any], Counterfactuals | None], None]
    replays: bool

    async def play(self, problem: Problem, seed: int) -> Tree[Any]:
        """See Rollout.play."""
        with self.lockstep.playing():
            tree = await Rollout.play(self, problem, seed)
            self.keep(tree, await counterfactuals(self, tree) if self.replays else None)
        return tree


class LocalBackend(Backend):
    """A team of adapters on one base. When built it is checked, with nothing loaded; after `open`
    it can play."""

    provider: Weights
    in_step = True
    _dev_share = 1.0
    """Moves of a dev problem, which is always played in chains, per move of an episode."""

    def __init__(
        self,
        config: RunConfig,
        task: BaseTask[Any],
        environ: Mapping[str, str],
        need_key: bool,
        folder: Path | None,
    ) -> None:
        require_installed()
        config = critics_by_names(config, environ)
        refuse(config)
        config, _ = for_program(with_source(config, folder), task)
        if not need_key:
            environ = {**NO_KEYS, **environ}
        # The other requests in vLLM's batch change the last bits.
        provider = Weights(model_of(config), deterministic=config.learn.vllm_url is None)
        super().__init__(as_chains(config), task, provider, environ)
        self.library = self._library(task)
        self._check_judge()
        if self.every is not None:
            self.notes += leftover(config.episodes, self.every)
        if self.config.learn.dtype == "bfloat16" and slow_half(self.config.learn.device):
            self.notes.append(
                "this processor has no instructions for bfloat16, and converts every number: "
                "learn.dtype=float32 is much faster here"
            )
        self._played: dict[int, tuple[Tree[Any], Counterfactuals | None]] = {}
        """Trees of the episodes since the last update."""
        self._state: Mapping[str, Any] = {}
        """Of the last update."""
        self._samples = list[int]()
        """Actions learned from, per update."""
        self._models = {role: one.model for role, one in self.drawn(task).items()}
        learn = self.config.learn
        held_out = dev_problems(task.problems("dev"), learn.evaluate_problems, self.config.seed)
        self._dev = DevEvaluations(held_out, self.config.seed, learn.evaluate_every)
        self._check(task)
        self._check_source(folder)

    def _check(self, task: BaseTask[Any]) -> None:
        """Raises ConfigError if the task has no dev problems for evaluations, or an agent's answers
        would all be equal."""
        if self.config.learn.evaluate_every and not self._dev.problems:
            raise ConfigError(
                f"task {task.name} has no dev problems to evaluate on: add some, or leave "
                "out learn.evaluate_every"
            )
        team = self.team(task)
        if not self._models or (
            self.every is not None and all(one.frozen for one in team.values())
        ):
            raise ConfigError(
                f"all agents of task {task.name} are frozen, so nobody would learn: take "
                "agents.ROLE.frozen away from one, or play them in backend api"
            )
        greedy = self.config.learn.top_k == 1
        cold = [r for r, one in team.items() if not one.frozen and (greedy or one.temperature == 0)]
        if self.config.search.branch == "tree" and self.every is not None:
            problems = task.problems(self.config.split)
            k, most = self.config.learn.samples, self.config.search.max_nodes
            tree = max(trees(task, problems, k, most), key=lambda one: one.nodes)
            self._dev_share = k * tree.stages / tree.nodes
        if cold and self.every is not None:
            how = "learn.top_k=1" if greedy else "temperature 0"
            raise ConfigError(
                f"{', '.join(cold)} would answer at {how}, and learns only from answers that "
                "differ: set it higher, or learn.enabled=false"
            )

    def _check_judge(self) -> None:
        """Raises ConfigError for a judge who can't be asked, or whose word would be lost."""
        judge = self.config.judge
        if not judge.enabled:
            return
        if self.bench.provider is self.provider:
            raise ConfigError(
                "backend local has no judge of its own: name one in judge.provider.name, or set "
                "judge.enabled=false"
            )
        if self.config.search.branch == "tree" and self.every is not None:
            raise ConfigError(
                "a judge compares finished trajectories side by side, and search.branch=tree has "
                "too many of them: set judge.enabled=false, or leave out search.branch"
            )
        if judge.when == "undecided":
            raise ConfigError(
                "judge.when=undecided rates only states that a search goes on from, and backend "
                "local searches none, so the judge would never be asked: leave out judge.when, or "
                "set judge.enabled=false"
            )
        if self._replays and judge.weight:
            raise ConfigError(
                "learn.credit=replay compares rewards with those of replays, which no judge rates, "
                f"but judge.weight={judge.weight:g}: set judge.weight=0, or learn.credit=joint"
            )

    def _check_source(self, folder: Path | None) -> None:
        """Raises ConfigError if the adapters to start from do not exist. A continued run has its
        own copy."""
        source, full = self.config.learn.source, self.config.learn.method == "full"
        file, other = (FULL, ADAPTER) if full else (ADAPTER, FULL)
        if folder is not None and (folder / START).is_dir():
            return
        if source is None:
            if self.config.learn.roles:
                raise ConfigError("learn.roles is of the agents in learn.from: give that too")
            return
        if any(source.glob(f"*/{file}")):
            if not full:
                team_of(source).check_sizes(self.config.learn)
            for role, one in starting(self.config.learn, [*self._models]).items():
                if one is None:
                    self.notes.append(f"learn.from: {role} starts fresh")
            return
        near = [*source.glob(f"checkpoints/*/*/{file}"), *source.glob(f"*/*/{file}")]
        near += source.glob(file)
        own = "full weights (learn.method=full)" if full else "adapters"
        what = f"holds no {own}" if source.is_dir() else "is not a folder here"
        if any(source.glob(f"*/{other}")):
            what += f", but {'adapters' if full else 'full weights (learn.method=full)'}"
        raise ConfigError(
            f"learn.from: {source} {what}: give a checkpoint, with a folder per agent, such as "
            f"{max(near).parent.parent if near else 'RUN/checkpoints/000020'}"
        )

    def _library(self, task: BaseTask[Any]) -> Library:
        """The behaviours in the prompts, of `behaviors.from`. Raises ConfigError for those of
        another task."""
        name, model, source = self.config.task, self.provider.model, self.config.behaviors.source
        if source is None:
            return empty_library(name, model)
        library = read_library(source)
        if library.task != name:
            raise ConfigError(
                f"{source} was learned on {library.task}, not on {name}, and backend local can't "
                "test its behaviours before it uses them: leave out behaviors.from, or learn "
                "prompts in backend api first"
            )
        check_size(library, source, self.config.behaviors.max_per_agent)
        if library.model != model:
            self.notes.append(
                f"behaviors.from was tested with {library.model}, not with {model}: its behaviours "
                "are in the prompts from the first episode on, and are not tested again"
            )
        roles = {spec.role for spec in task.agents}
        library, strangers = for_roles(library, roles, task.name)
        self.notes += strangers
        return library.adopted().model_copy(update={"model": model})

    def team(self, task: BaseTask[Any]) -> dict[str, Member]:
        """See Backend: with the behaviours of `behaviors.from`. Those for whom others answer take
        only their own temperature."""
        team = {
            role: replace(one, temperature=self.config.agents[role].temperature)
            if role in self._own
            else one
            for role, one in super().team(task).items()
        }
        return shown(self.library, team)

    def drawn(self, task: BaseTask[Any]) -> dict[str, Member]:
        """Those of the team whom the weights answer for."""
        return {role: one for role, one in self.team(task).items() if role not in self._own}

    def files(self) -> dict[str, str]:
        """See Backend: the library in use."""
        return {IN_RUN.as_posix(): to_yaml(self.library)} if self.library.behaviors else {}

    def kept_config(self, store: Store) -> RunConfig:
        """See Backend: with the run's own copy of its starting library, under the name of the base
        whose weights learn with it."""
        return keep(self.config, store, to_yaml(self.library))

    def digests(self) -> dict[str, str]:
        """See Backend: the base, or each agent's if they differ. A hub model that is not downloaded
        yet has no digest."""
        from orchestry.backends.local.model import base_digest

        found = {f"base of {role}": base_digest(model) for role, model in self._models.items()}
        if len(set(self._models.values())) == 1:
            found = {"base": next(iter(found.values()))}
        for role, asked in self._own.items():
            found[f"weights of {role}"] = getattr(asked.provider, "sha256", None)
        return {name: digest for name, digest in found.items() if digest is not None}

    @property
    def every(self) -> int | None:
        """See Backend."""
        return self.config.learn.every if self.config.learn.enabled else None

    @property
    def dev_plays(self) -> int:
        """See Backend."""
        every = self.config.learn.evaluate_every
        if not every or self.every is None:
            return 0
        plays = len(self._dev.problems) * (1 + self.config.episodes // self.every // every)
        return round(plays * self._dev_share)

    @property
    def last_update(self) -> Mapping[str, Any]:
        """See Backend."""
        return self._state

    @property
    def dev_rewards(self) -> dict[str, float]:
        """See Backend."""
        return self._dev.rewards

    @property
    def best_update(self) -> int | None:
        """See Backend."""
        return self._dev.best.update if self._dev.best else None

    @property
    def updates(self) -> int:
        """See Backend."""
        return len(self._samples)

    @property
    def taught(self) -> int:
        """See Backend."""
        return len(self._samples) - self._samples.count(0)

    @asynccontextmanager
    async def open(self, on: Opening) -> AsyncIterator[None]:
        """Loads the weights, and the adapters of the last update.

        Episodes since that update are played again, all together, so that every batch is bit for
        bit what it would have been without the stop.
        """
        learned = [event for event in on.store.events if isinstance(event, Learned)]
        self._samples, self._store = [one.state["samples"] for one in learned], on.store
        self._state = learned[-1].state if learned else {}
        async with super().open(on):
            last = self._last(learned)
            self._trainer = await asyncio.to_thread(self._load, on.task, last, on.warn)
            try:
                self._begin(on)
                with gpu_watch(str(self.provider.device), on.warn) as self._gpu:
                    yield
            finally:
                self._trainer.close()

    def _begin(self, on: Opening) -> None:
        """Facts that are known only after the weights are loaded."""
        self._keep_start(on.store)
        base = self._trainer.crews[0].base
        self.provider.device, self.provider.sha256 = str(base.device), base.sha256
        self.provider.gpu = gpu_name(base.device)
        self.provider.deterministic &= base.device.type == "cpu"  # a GPU's sums have no fixed order
        self._drawing = Drawing(self._trainer, self.gateway, self._own)
        self._lockstep = Lockstep(self._drawing.draw)
        self.players = self._with_tools(self._lockstep, in_step=True)
        self._dev.go_on(event for event in on.store.events if isinstance(event, Evaluated))
        self._dev_rollout = self._unjudged(on.task, on.rate)
        if self.every is not None:
            on.warn(self._trainer.sizes)
            self._take_back(self.updates * self.every, on.warn)

    def _last(self, learned: Sequence[Learned]) -> Path | None:
        """The checkpoint to continue from; raises StoreError if it is damaged."""
        if not learned:
            return None
        folder = self._store.folder
        there = [one.state["checkpoint"] for one in learned[:-1]]
        kept = [str(folder / name) for name in there if (folder / name).is_dir()]
        other = f", or begin another run with learn.from={kept[-1]}" if kept else ""
        check_files(folder, learned[-1], f"restore it from a copy{other}")
        return folder / str(learned[-1].state["checkpoint"])

    def _take_back(self, first: int, on_warn: Callable[[str], None]) -> None:
        """Discards the episodes since the last update, so that they are played again together.

        Episodes at the run's end that are too few for an update stay."""
        store, asked = self._store, self.config.episodes
        if lost := [episode for episode in store.lost if episode < first]:
            raise StoreError(
                f"{store.folder / 'episodes.jsonl'} lacks episode {min(lost)}, and the weights "
                "that played it are gone: restore the file from a copy"
            )
        since = {episode for episode in store.episodes.keys() | store.lost if episode >= first}
        if not since or (asked - first < self.config.learn.every and len(since) == asked - first):
            return
        on_warn(f"{len(since)} episodes since the last update are played again, all together")
        store.roll_back(first, time.time())

    def _load(
        self, task: BaseTask[Any], last: Path | None, on_warn: Callable[[str], None]
    ) -> Trainer:
        from orchestry.backends.local.distributed import load_trainer

        settings = self.config.learn
        updates = self.config.episodes // settings.every
        trainer = load_trainer(
            self.drawn(task),
            settings,
            updates,
            self.config.seed,
            on_warn,
            self._beat,
        )
        if last is not None:
            trainer.resume(last)
        elif settings.source is not None:
            kept = self._store.folder / START
            own = bool(self._store.events) and kept.is_dir()
            roles = {} if own else starting(settings, [*self._models])
            trainer.start_from(kept if own else settings.source, own, roles)
        return trainer

    def _beat(self, tokens: int) -> None:
        """Called in the computing thread with the number of new tokens; raises at an interrupt."""
        self.gateway.pulse.tokens += tokens
        self.gateway.check_door()

    def _keep_start(self, store: Store) -> None:
        """Copies the starting adapters into the run, because another run may delete its
        checkpoints."""
        source, kept = self.config.learn.source, store.folder / START
        if source is None or store.events or self.every is None:
            return
        part = kept.with_name(kept.name + ".part")
        try:
            for old in (part, kept):  # left by a process that ended before its first event
                shutil.rmtree(old, ignore_errors=True)
            for crew in self._trainer.crews:
                crew.adapters.save(part)
            part.replace(kept)
        except OSError as error:
            raise refused(kept, error) from None

    @classmethod
    def as_left(cls, source: Run, learned: Learned | None, folder: Path) -> dict[str, Any]:
        """See Backend: the adapters of that update, or the starting ones."""
        changes: dict[str, Any] = {"enabled": False}
        place = checkpoint(source, learned) if learned else source.folder / START
        if place.is_dir():  # of its own agents
            changes |= {"from": str(place.absolute()), "roles": None}
        found: dict[str, Any] = {"learn": changes}
        if (source.folder / KEPT).is_file():
            found["behaviors"] = {"from": str((source.folder / KEPT).absolute())}
        return found

    def schedules(
        self,
        task: BaseTask[Any],
        problems: Sequence[Problem],
        before: Iterable[EpisodeRecord] = (),
    ) -> list[Schedule]:
        """See Backend: what is learned from."""
        learn, search = self.config.learn, self.config.search
        if learn.enabled and learn.group_size is None:
            return [Chains(n) for n in group_sizes(problems, before, learn.samples)]
        if learn.enabled and search.branch == "tree":
            return [branching(task, problem, learn.samples) for problem in problems]
        return super().schedules(task, problems, before)

    def rollout(
        self, task: BaseTask[Any], rate: Rate, schedule: Schedule, episode: int
    ) -> Rollout[Any]:
        """The policy of that episode: the weights after the previous updates."""
        how: dict[str, Any] = {
            "task": task,
            "team": self.team(task),
            "policy": self.players,
            "rate": rate,
            "schedule": schedule,
            "judge": self._judge(episode),
            "lockstep": self._lockstep,
        }
        if self.every is None:
            return InStep(**how)
        return Learning(**how, keep=partial(self._keep, episode), replays=self._replays)

    async def replay(self, rollout: Rollout[Any], tree: Tree[Any]) -> None:
        """See Backend."""
        if self._replays:
            await counterfactuals(rollout, tree)

    def _corrected(self, episode: int) -> Calibration:
        """See Backend: by ratings of the episodes before its block only. A resume plays the block
        again, and must correct the judge as the first time."""
        if self.every is None:
            return super()._corrected(episode)
        first, episodes = episode // self.every * self.every, self._store.episodes
        records = [episodes[number] for number in sorted(episodes) if number < first]
        return calibration(judged_pairs(records, ratings(self._store.events)))

    @property
    def _replays(self) -> bool:
        return self.every is not None and self.config.learn.credit == "replay"

    def _keep(self, episode: int, tree: Tree[Any], credits: Counterfactuals | None) -> None:
        self._played[episode] = tree, credits

    async def update(
        self,
        block: Sequence[EpisodeRecord],
        said: Mapping[tuple[int, str], Rated],
        again: Sequence[EpisodeRecord] = (),
    ) -> Update:
        """One MAGRPO step from the episodes since the last one, saved before it counts. People's
        ratings of these are in their returns.

        Raises LearnError for non-finite numbers; only the batch is saved then.
        """
        heard = self._hear(block, said, again)
        played = [self._played[record.episode] for record in block]
        done, seen = await self._learn(played)
        figures = {
            **done.beside(drawn([tree for tree, _ in played])),
            **self._drawing.pace(),
            **seen,
        }
        self._played.clear()
        every, keep = self.config.learn.every, self.config.learn.keep
        name = _checkpoint((self.updates + 1) * every)
        spared = {_checkpoint(update * every).name for update in self._spared()}
        await asyncio.to_thread(self._trainer.save, self._store.folder / name, keep, spared)
        self._samples.append(done.samples)
        reward = fmean([record.mean_leaf_reward for record in block] or [0.0])
        files = file_digests(self._store.folder / name)
        state = {"checkpoint": name.as_posix(), "files": files, "reward": reward, **figures}
        if gpu := self._gpu.figures():
            state["gpu"] = gpu
        self._state = state
        note = f"update {self.updates}: reward {reward:.3f}, {done.line()}"
        if self.config.learn.group_size is None:
            sizes = state["group_sizes"] = [len(list(record.leaves())) for record in block]
            note += f", groups of {min(sizes)} to {max(sizes)}"
        if seen:
            note += f", critic explained {seen['value_explained']:.0%} of the returns' variance"
        last = self.updates == self.config.episodes // every
        more = empty_updates(self._samples, reward, last)
        return Update(state, {}, [*heard, note, *more])

    def _spared(self) -> Iterator[int]:
        """Earlier updates whose checkpoints stay: the best on dev, and every `keep_every`-th."""
        if self._dev.best:
            yield self._dev.best.update
        if (every := self.config.learn.keep_every) is not None:
            yield from range(every, self.updates + 1, every)

    def _hear(
        self,
        block: Sequence[EpisodeRecord],
        said: Mapping[tuple[int, str], Rated],
        again: Sequence[EpisodeRecord],
    ) -> list[str]:
        """Puts people's ratings into the block's trees; returns lines for the user."""
        weight = 0.0 if self._replays else self.config.judge.weight  # see _check_judge
        asked = heard = 0
        for record in block:
            mine = {node: one for (number, node), one in said.items() if number == record.episode}
            asked += len(mine)
            heard += hear(self._played[record.episode][0], mine, weight)
        return notes(asked, heard, late_ones(self._store.events, again), self._replays)

    async def evaluate(self) -> Evaluation | None:
        """See Backend; a run that does not learn, such as an evaluation, is not evaluated."""
        if self.every is None:
            return None
        return await self._dev.evaluate(self._dev_rollout, self.updates)

    async def _learn(
        self, played: Sequence[tuple[Tree[Any], Counterfactuals | None]]
    ) -> tuple[Learnt, Mapping[str, float]]:
        """The step itself, and the critic's figures; if it gives non-finite numbers, the batch is
        saved for the user."""
        from orchestry.backends.local.batch import gather
        from orchestry.backends.local.values import by_tree, rated

        settings, critic = self.config.learn, self._trainer.critic
        trees = [tree for tree, _ in played]
        states = rated(trees, settings.rewards, settings.discount) if critic else []
        values = await asyncio.to_thread(critic.values, states) if critic else []
        credits = [found for _, found in played if found is not None]
        uneven = settings.group_size is None or self.config.search.branch == "tree"
        batch = gather(
            trees,
            joint=self.config.search.joint,
            rewards=settings.rewards,
            discount=settings.discount,
            grouping=settings.grouping,
            baseline="mean" if settings.baseline == "critic" else settings.baseline,
            normalise=settings.normalise or settings.comlrl_compat,
            skip=not (settings.kl or settings.comlrl_compat),
            credits=credits if self._replays else None,
            frozen=[role for role, own in self.config.agents.items() if own.frozen],
            shares=uneven,
            like=settings.samples if uneven else None,
            values=by_tree(states, values, len(trees)) if critic else None,
            trace=settings.gae_lambda,
        )
        try:
            done = await asyncio.to_thread(self._trainer.learn, batch)
            seen = await asyncio.to_thread(critic.learn, states, values) if critic else {}
        except LearnError as error:
            name = f"failed-update-{self.updates + 1}.json"
            self._store.write(name, json.dumps(asdict(batch)) + "\n")
            raise LearnError(f"{error}; the batch is {self._store.folder / name}") from error
        return done, seen

    def _unjudged(self, task: BaseTask[Any], rate: Rate) -> InStep:
        """Plays dev problems like episodes, without judge; their trees are not kept."""
        return InStep(
            task=task,
            team=self.team(task),
            policy=self.players,
            rate=rate,
            schedule=Chains(self.config.learn.samples, self.config.search.joint),
            purpose="dev",
            lockstep=self._lockstep,
        )


def _checkpoint(episodes: int) -> Path:
    """The checkpoint's folder in the run, named by the number of episodes learned from."""
    return Path("checkpoints", f"{episodes:06d}")
