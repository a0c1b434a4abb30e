"""GEPA optimises a team's prompts, and Orchestry plays the team (written for gepa 0.1).

A candidate is the agents' system prompts by role. All plays, replays for credit and reflections are
calls of one folder with a journal and a ledger: one cap holds for them together, and what was asked
once is not paid again. They run in a thread of their own, so that GEPA can wait for them.

An evaluation with traces, from which GEPA reflects, plays a tree: `samples` of each agent in every
state. So each agent's credit compares its answer with its own other answers in the same state.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from orchestry.core.concurrency import together
from orchestry.core.config import RunConfig, TrackersConfig, validate
from orchestry.core.errors import BudgetExceeded, ConfigError, OrchestryError, unknown
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Message, Problem, Request, Split
from orchestry.engine.changes import changed, config_digests, worded
from orchestry.engine.manifest import Reason
from orchestry.engine.plan import Plan
from orchestry.engine.run import drive, prepare
from orchestry.engine.scores import Faults, Verdicts
from orchestry.engine.session import Work
from orchestry.rollout.credit import blame
from orchestry.rollout.replay import give_credit
from orchestry.rollout.schedule import Chains, Schedule, branching
from orchestry.rollout.tree import episode_record
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Store

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch

CONFIG = "gepa.yaml"
"""The config's file name. Not config.yaml, so that no other command takes the folder for a run."""
SHARE = 0.5
"""Most calls for replays, as a share of a tree's own, unless `credit.share` says otherwise."""
LARGEST = 64
"""Most states of a tree. A longer task is played in chains, and its credit is by replays alone."""
CLOSED = "the adapter is not open: use it inside `with TeamAdapter(...) as team`"
_T = TypeVar("_T")
_Order = tuple[Callable[[], Coroutine[Any, Any, Any]], Future[Any]]
"""What is to be done, and where its result goes."""


class TeamAdapter:
    """A GEPAAdapter. Use it with `with`, once; it needs no `async`.

    `config`: a run of backend api; `budget.usd` is the cap of everything in `folder`, over all
    programs that use it, and `behaviors.provider`, or else `judge.provider`, is the model that
    reflects (None: the team's). A problem is played once, and with traces `samples` times in every
    state; its score is the mean reward. `note` takes lines for the user. Raises ConfigError before
    anything is spent, and at `with` for a folder that holds something else.
    """

    propose_new_texts = None
    """GEPA's own proposer writes the prompts."""

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any],
        folder: str | Path,
        samples: int = 2,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        config = config if isinstance(config, RunConfig) else validate(config)
        self._plan = prepare(_settled(config, samples), note)
        self._folder, self._note = Path(folder), note
        self._asked = Counter[str]()
        self._opened, self._ended = Future[_Evaluations](), Future[None]()

    def __enter__(self) -> Self:
        if self._opened.done() or self._ended.done():
            raise ConfigError("this adapter was used before: make another one for the same folder")
        Thread(target=self._run, daemon=True).start()
        either: list[Future[Any]] = [self._opened, self._ended]
        wait(either, return_when=FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Waits for paid calls in flight. Raises what GEPA kept to itself, but for the cap."""
        work = self._opened.result()
        if not self._ended.done():
            if kind is not None and not issubclass(kind, Exception):  # Ctrl-C
                work.send(work.interrupt)
            work.send(work.orders.put_nowait, None)
        self._ended.result()
        if isinstance(work.failure, BudgetExceeded):
            self._note(str(work.failure))
        elif work.failure is not None and kind is None:
            raise work.failure

    @property
    def seed_candidate(self) -> dict[str, str]:
        """The agents' system prompts as the config has them, by role."""
        team = self._plan.backend.team(self._plan.task)
        return {role: member.system_prompt for role, member in team.items()}

    def problems(self, split: Split) -> list[Problem]:
        """The task's problems of a split, for `trainset` and `valset`."""
        return list(self._plan.task.problems(split))

    @property
    def spent(self) -> float:
        """Dollars spent in the folder so far."""
        return self._evaluations.plan.backend.gateway.ledger.spent

    def stopped(self, state: Any = None) -> bool:
        """For `stop_callbacks`: whether the cap, or an error, has stopped an order."""
        return self._evaluations.failure is not None

    def evaluate(
        self, batch: list[Problem], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[EpisodeRecord, Any]:
        """Plays each problem with these prompts; an agent that the candidate leaves out has its
        own. Equal candidates have equal scores, with traces or without, and all have the same luck:
        the seed depends on the problem alone. A trajectory is an EpisodeRecord, with what each
        agent saw and said, and its credit. Raises OrchestryError for what stops the work,
        BudgetExceeded at the cap."""
        from gepa.core.adapter import EvaluationBatch

        roles = list(self.seed_candidate)
        if strange := [name for name in candidate if name not in roles]:
            raise ConfigError(unknown("agent", strange[0], roles))
        if not all(isinstance(one, Problem) for one in batch):
            raise ConfigError("a batch has what is no Problem: give GEPA `problems(split)`")
        played = self._do(lambda work: work.evaluate(batch, candidate, capture_traces))
        return EvaluationBatch(
            outputs=[_said(one) for one in played],
            scores=[one.mean_leaf_reward for one in played],
            trajectories=played if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[EpisodeRecord, Any],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, str]]]:
        """For each agent its turns in the best and the worst trajectory of each problem, with the
        reward, its parts, the task's feedback, and each agent's credit."""
        played = [one for one in eval_batch.trajectories or () if not one.failed]
        whole = blame(played)
        return {
            role: [row for record in played for row in _rows(record, role, whole)]
            for role in components_to_update
        }

    def reflection_lm(self, prompt: str | list[dict[str, Any]]) -> str:
        """A model's answer, of up to `judge.max_tokens` tokens, under the same cap. A prompt that
        was asked before gets another answer. Raises OrchestryError if there is none."""
        whole = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = tuple(Message.model_validate(one) for one in whole)
        number = self._asked[str(whole)]
        self._asked[str(whole)] += 1
        answer = self._do(lambda work: work.reflect(messages, number))
        if answer.failed:
            raise OrchestryError(f"the reflection got no answer: {answer.failed}")
        if answer.stop == "length":
            most = self._plan.config.judge.max_tokens
            self._note(f"warning: a reflection was cut off: raise judge.max_tokens={most}")
        return answer.text

    def _run(self) -> None:
        try:
            self._ended.set_result(asyncio.run(self._work()))
        except BaseException as error:
            self._ended.set_exception(error)

    async def _work(self) -> None:
        with Store(self._folder) as store:
            ground = self._ground(store)
            await drive(_Evaluations(self._plan, store, self._note, self._opened), ground)

    def _ground(self, store: Store) -> dict[str, Any]:
        """What this process runs on, for the journal. Raises ConfigError if the folder holds a run,
        or what was played with something else."""
        if (store.folder / "config.yaml").exists():
            raise ConfigError(f"{store.folder} holds a run: give GEPA another folder")
        plan = self._plan
        digests = {**config_digests(plan.config), **plan.digests, **plan.backend.digests()}
        if found := changed(store.events, digests):
            raise ConfigError(
                f"{store.folder} was played with other contents of "
                f"{worded(found).replace('config.yaml', CONFIG)}: put that back, or give another "
                "folder"
            )
        store.write(CONFIG, plan.config.to_yaml())
        return {"digests": digests}

    def _do(self, order: Callable[[_Evaluations], Coroutine[Any, Any, _T]]) -> _T:
        """The result of an order to the other thread."""
        work, done = self._evaluations, Future[_T]()
        if not self._ended.done():
            work.send(work.orders.put_nowait, (lambda: order(work), done))
            either: list[Future[Any]] = [done, self._ended]
            wait(either, return_when=FIRST_COMPLETED)
        if not done.done():
            self._ended.result()
            raise ConfigError(CLOSED)
        return done.result()

    @property
    def _evaluations(self) -> _Evaluations:
        if not self._opened.done():
            raise ConfigError(CLOSED)
        return self._opened.result()


class _Evaluations(Work):
    """Does what it is ordered, several orders at once, until the order None."""

    rate: Verdicts

    def __init__(
        self,
        plan: Plan,
        store: Store,
        note: Callable[[str], None],
        opened: Future[_Evaluations],
    ) -> None:
        super().__init__(plan, store, note, "the same program")
        self.faults = Faults(plan.task, store, note)
        self.orders = asyncio.Queue[_Order | None]()
        self._loop, self._opened = asyncio.get_running_loop(), opened
        self._told = False

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Makes a call in this work's own thread."""
        self._loop.call_soon_threadsafe(call, *args)

    async def play(self, rate: Verdicts) -> None:
        """See Work."""
        self.rate = rate
        self._opened.set_result(self)
        await self.run([self._serve()])
        rate.sum_up()

    def sum_up(self, reason: Reason, seconds: float) -> None:
        """See Work: a line for the user."""
        gateway = self.plan.backend.gateway
        calls = sum(row.calls for row in gateway.usage())
        self.note(f"{calls} calls, ${gateway.ledger.spent:.4g}")

    async def evaluate(
        self, problems: Sequence[Problem], prompts: Mapping[str, str], traced: bool
    ) -> list[EpisodeRecord]:
        """Raises the error of a provider that never answered, and of a task that never scored."""
        places = asyncio.Semaphore(self.plan.episodes_in_flight)

        async def one(problem: Problem) -> EpisodeRecord:
            async with places:
                return await self._played(problem, prompts, traced)

        played = await together(one(problem) for problem in problems)
        self.rate.check(1)
        if silent := self.plan.backend.gateway.verdict():
            raise silent
        return played

    async def _played(
        self, problem: Problem, prompts: Mapping[str, str], traced: bool
    ) -> EpisodeRecord:
        plan, way = self.plan, self._tree(problem) if traced else Chains(1)
        usual = plan.backend.rollout(plan.task, self.rate, way, 0)
        team = {
            role: replace(member, system_prompt=prompts.get(role, member.system_prompt))
            for role, member in usual.team.items()
        }
        rollout = replace(usual, team=team, judge=None)
        tree = await rollout.play(problem, derive(plan.config.seed, problem.split, problem.id))
        if not (traced and tree.leaves):
            return episode_record(tree, 0)
        found = await give_credit(rollout, tree, plan.config.credit)
        return episode_record(tree, 0, found.records, found.calls)

    def _tree(self, problem: Problem) -> Schedule:
        """Chains for a program, which can't be branched, and for a tree that would be too large."""
        search = self.plan.config.search
        tree = branching(self.plan.task, problem, search.k_samples)
        if search.strategy == "chains":
            return Chains(search.k_samples)
        if tree.nodes <= LARGEST:
            return tree
        if not self._told:
            self._told = True
            self.note(
                f"{tree.nodes} states in the tree of {problem.id} are more than {LARGEST}: such "
                f"problems are played in {search.k_samples} chains, where credit is less exact"
            )
        return Chains(search.k_samples)

    async def reflect(self, messages: tuple[Message, ...], number: int) -> Completion:
        """The answer of that number to a prompt."""
        config, critic = self.plan.config, self.plan.backend.bench
        request = Request(
            agent="reflection",
            purpose="distil",
            model=critic.provider.model,
            messages=messages,
            max_tokens=config.judge.max_tokens,
            sample_index=number,
            seed=derive(config.seed, "reflect"),
        )
        policy = self.plan.backend.gateway.beside(critic.provider, critic.prices)
        ((answer,),) = await policy.sample([request], 1)
        return answer

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            while order := await self.orders.get():
                group.create_task(self._obey(*order))

    async def _obey(self, work: Callable[[], Coroutine[Any, Any, _T]], done: Future[_T]) -> None:
        try:
            done.set_result(await work())
        except Exception as error:
            told = self._capped() if isinstance(error, BudgetExceeded) else error
            self.fail(told)
            done.set_exception(told)

    def _capped(self) -> BudgetExceeded:
        """The ledger's own words are of a run."""
        ledger = self.plan.backend.gateway.ledger
        return BudgetExceeded(
            f"${ledger.spent:.4g} of the budget of ${ledger.cap_usd:.4g} is spent, and the next "
            "call could cost more than the rest: raise budget.usd and start the same program again "
            f"with {ledger.folder}, where all answers are kept"
        )


def _settled(config: RunConfig, samples: int) -> RunConfig:
    """The config of plays without search, judge and learning. Raises ConfigError for backends whose
    teams are no prompts."""
    if config.backend != "api":
        raise ConfigError(
            f"GEPA optimises prompts, and backend {config.backend} trains weights: use backend "
            "api, where provider.name=local:RUN plays with trained weights"
        )
    if samples < 1:
        raise ConfigError(f"samples={samples} per state: give 1 or more, such as 2")
    search = {"strategy": "beam", "k_samples": samples, "joint": "aligned"}
    # The judge is asked for nothing but reflections: that opens its provider.
    writer = config.behaviors.provider or config.judge.provider
    share = SHARE if config.credit.share is None else config.credit.share
    return config.model_copy(
        update={
            "search": config.search.model_copy(update=search),
            "judge": config.judge.model_copy(update={"enabled": True, "provider": writer}),
            "behaviors": config.behaviors.model_copy(update={"enabled": False}),
            "credit": config.credit.model_copy(update={"share": share}),
            "curriculum": "none",
            "trackers": TrackersConfig(),
        }
    )


def _said(record: EpisodeRecord) -> list[list[tuple[str, str]]]:
    """Of each trajectory, who said what, in order."""
    paths = [record.path(leaf.id) for leaf in record.leaves()]
    return [[(t.agent, t.completion.text) for node in path for t in node.turns] for path in paths]


def _rows(record: EpisodeRecord, role: str, whole: Mapping[str, float]) -> Iterator[dict[str, str]]:
    """An agent's turns in the best and the worst trajectory. `whole`: each agent's mean credit for
    the best tries of all problems."""
    worst = min(record.leaves(), key=lambda leaf: leaf.score.total)
    for leaf in dict.fromkeys([*(one.leaf for one in record.credits)] or [record.best, worst.id]):
        for node in record.path(leaf):
            for turn in node.turns:
                if turn.agent == role:
                    seen = (one.content for one in turn.messages if one.role != "system")
                    yield {
                        "Inputs": "\n\n".join(seen),
                        "Generated Outputs": turn.completion.told,
                        "Feedback": _feedback(record, leaf, role, whole),
                    }


def _feedback(record: EpisodeRecord, leaf: str, role: str, whole: Mapping[str, float]) -> str:
    """What an agent is told of a trajectory that it took part in."""
    score = record.node(leaf).score
    parts = ", ".join(f"{part.name} {part.value:.2f}" for part in score.parts)
    others = {one.agent: one.credit for one in record.credits if one.leaf == leaf}
    said = [
        f"The team's reward was {score.total:.2f} of 1 ({parts}), and "
        f"{record.mean_leaf_reward:.2f} on average in all tries of this task.",
        score.feedback,
    ]
    if any(others.values()):  # else the tries were alike, or none was measured
        (own,) = (one for one in record.credits if (one.agent, one.leaf) == (role, leaf))
        said.append(
            f"Of the difference, this agent ({role}) caused {own.credit:+.2f} (95 % interval "
            f"{own.low:+.2f} to {own.high:+.2f}){_besides(others, role)}."
        )
    if any(whole.values()):
        said.append(
            "What made the best tries of all these tasks better than the average: this agent "
            f"{whole[role]:+.2f}{_besides(whole, role)}."
        )
    return "\n".join(filter(None, said))


def _besides(credits: Mapping[str, float], role: str) -> str:
    """The credits of the others."""
    return "".join(f", {who} {credit:+.2f}" for who, credit in credits.items() if who != role)
