"""GEPA optimises a team's prompts, and Orchestry plays the team (written for gepa 0.1).

A candidate is the agents' system prompts by role. All plays, replays for credit and reflections are
calls of one folder with a journal and a ledger: one cap holds for them together, and what was asked
once is not paid again. They run in a thread of their own, so that GEPA can wait for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from orchestry.core.concurrency import together
from orchestry.core.config import RunConfig, TrackersConfig, validate
from orchestry.core.errors import BudgetExceeded, ConfigError, OrchestryError, unknown
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Message, Problem, Request, Split, Tree
from orchestry.engine.changes import changed, config_digests, worded
from orchestry.engine.manifest import Reason
from orchestry.engine.plan import Plan
from orchestry.engine.run import drive, prepare
from orchestry.engine.scores import Faults, Verdicts
from orchestry.engine.session import Work
from orchestry.rollout.replay import give_credit
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.tree import episode_record
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Store

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch

CONFIG = "gepa.yaml"
"""The config's file name. Not config.yaml, so that no other command takes the folder for a run."""
SHARE = 1.0
"""Most calls for replays, as a share of a play's own, unless `credit.share` says otherwise."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Played:
    """One problem, played by a candidate: GEPA's trajectory."""

    rollout: Rollout[Any]
    tree: Tree[Any]

    @property
    def score(self) -> float:
        """The mean reward of its trajectories; 0 if none came to its end."""
        return fmean([leaf.total for leaf in self.tree.leaves] or [0.0])

    @property
    def said(self) -> list[list[tuple[str, str]]]:
        """Of each trajectory, who said what, in order."""
        leaves = [leaf.trajectory for leaf in self.tree.leaves]
        return [[(turn.agent, turn.completion.text) for turn in one.turns] for one in leaves]


class TeamAdapter:
    """A GEPAAdapter. Use it with `with`, once; it needs no `async`.

    `config`: a run of backend api. A problem is played `search.k_samples` times, and its score is
    the mean reward. `budget.usd` is the cap of everything in `folder`, over all programs that use
    it. `behaviors.provider`, or else `judge.provider`, names the model that reflects; without
    either it is the team's. `note` takes lines for the user. Raises ConfigError before anything is
    spent, and at `with` for a folder that holds something else.
    """

    propose_new_texts = None
    """GEPA's own proposer writes the prompts."""

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any],
        folder: str | Path,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        config = config if isinstance(config, RunConfig) else validate(config)
        self._plan, self._folder, self._note = prepare(_settled(config), note), Path(folder), note
        self._asked = Counter[str]()
        self._opened, self._ended = Future[_Evaluations](), Future[None]()

    def __enter__(self) -> Self:
        Thread(target=self._run, daemon=True).start()
        wait([self._opened, self._ended], return_when=FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Waits for paid calls in flight. Raises what GEPA kept to itself, but for the cap."""
        work = self._opened.result()
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
        return self._opened.result().plan.backend.gateway.ledger.spent

    def stopped(self, state: Any = None) -> bool:
        """For `stop_callbacks`: whether the cap, or an error, has stopped an order."""
        return self._opened.result().failure is not None

    def evaluate(
        self, batch: list[Problem], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Played, Any]:
        """Plays each problem with these prompts; an agent that the candidate leaves out has its
        own. Equal candidates have equal scores, and all have the same luck: the seed depends on the
        problem alone. Raises OrchestryError for what stops the work, BudgetExceeded at the cap."""
        from gepa.core.adapter import EvaluationBatch

        roles = list(self.seed_candidate)
        if strange := [name for name in candidate if name not in roles]:
            raise ConfigError(unknown("agent", strange[0], roles))
        plays = self._do(lambda work: work.evaluate(batch, candidate))
        return EvaluationBatch(
            outputs=[one.said for one in plays],
            scores=[one.score for one in plays],
            trajectories=plays if capture_traces else None,
        )

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Played, Any],
        components_to_update: list[str],
    ) -> dict[str, list[dict[str, str]]]:
        """For each agent its turns in the best and the worst trajectory of each problem, with the
        reward, its parts, the task's feedback, and each agent's credit. Only here are replays for
        credit paid, since GEPA reflects on few of its evaluations."""
        plays = [one for one in eval_batch.trajectories or () if one.tree.leaves]
        records = self._do(lambda work: work.credited(plays))
        return {
            role: [row for record in records for row in _rows(record, role)]
            for role in components_to_update
        }

    def reflection_lm(self, prompt: str | list[dict[str, Any]]) -> str:
        """A model's answer, of up to `judge.max_tokens` tokens, under the same cap. A prompt that
        was asked before gets another answer. Raises OrchestryError if there is none."""
        whole = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = tuple(Message.model_validate(one) for one in whole)
        number, key = self._asked[str(whole)], str(whole)
        self._asked[key] += 1
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
            await drive(
                _Evaluations(self._plan, store, self._note, self._opened), self._ground(store)
            )

    def _ground(self, store: Store) -> dict[str, Any]:
        """What this process runs on, for the journal. Raises ConfigError if the folder holds a run,
        or what was played with something else."""
        if (store.folder / "config.yaml").exists():
            raise ConfigError(f"{store.folder} holds a run: give GEPA another folder")
        plan = self._plan
        digests = {**config_digests(plan.config), **plan.digests, **plan.backend.digests()}
        if found := changed(store.events, digests):
            raise ConfigError(
                f"{store.folder} was played with other contents of {worded(found)}: put that back, "
                "or give another folder"
            )
        store.write(CONFIG, plan.config.to_yaml())
        return {"digests": digests}

    def _do(self, order: Callable[[_Evaluations], Coroutine[Any, Any, _T]]) -> _T:
        """The result of an order to the other thread."""
        if not self._opened.done() or self._ended.done():
            raise ConfigError(
                "the adapter is not open: use it inside `with TeamAdapter(...) as team`"
            )
        work, done = self._opened.result(), Future[_T]()
        work.send(work.orders.put_nowait, (lambda: order(work), done))
        wait([done, self._ended], return_when=FIRST_COMPLETED)
        if not done.done():
            self._ended.result()
        return done.result()


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
        self.orders = asyncio.Queue[
            tuple[Callable[[], Coroutine[Any, Any, Any]], Future[Any]] | None
        ]()
        self._loop, self._opened_now = asyncio.get_running_loop(), opened

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Makes a call in this work's own thread."""
        self._loop.call_soon_threadsafe(call, *args)

    async def play(self, rate: Verdicts) -> None:
        """See Work."""
        self.rate = rate
        self._opened_now.set_result(self)
        await self.run([self._serve()])
        rate.sum_up()

    def sum_up(self, reason: Reason, seconds: float) -> None:
        """See Work: a line for the user."""
        gateway = self.plan.backend.gateway
        calls = sum(row.calls for row in gateway.usage())
        self.note(f"{calls} calls, ${gateway.ledger.spent:.4g}")

    async def evaluate(
        self, problems: Sequence[Problem], prompts: Mapping[str, str]
    ) -> list[Played]:
        """Raises the error of a provider that never answered, and of a task that never scored."""
        places = asyncio.Semaphore(self.plan.episodes_in_flight)

        async def one(problem: Problem) -> Played:
            async with places:
                return await self._played(problem, prompts)

        plays = await together(one(problem) for problem in problems)
        self.rate.check(1)
        if silent := self.plan.backend.gateway.verdict():
            raise silent
        return plays

    async def _played(self, problem: Problem, prompts: Mapping[str, str]) -> Played:
        plan = self.plan
        usual = plan.backend.rollout(plan.task, self.rate, plan.schedule(problem), 0)
        own = {role: {"system_prompt": text} for role, text in prompts.items()}
        team = {role: replace(one, **own.get(role, {})) for role, one in usual.team.items()}
        rollout = replace(usual, team=team, judge=None)
        seed = derive(plan.config.seed, "gepa", problem.split, problem.id)
        return Played(rollout, await rollout.play(problem, seed))

    async def credited(self, plays: Sequence[Played]) -> list[EpisodeRecord]:
        """The plays, with each agent's credit for the best trajectory and the worst."""

        async def one(play: Played) -> EpisodeRecord:
            found = await give_credit(play.rollout, play.tree, self.plan.config.credit)
            return episode_record(play.tree, 0, found.records, found.calls)

        return await together(map(one, plays))

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


def _settled(config: RunConfig) -> RunConfig:
    """The config of plays without search, judge and learning. Raises ConfigError for backends whose
    teams are no prompts."""
    if config.backend != "api":
        raise ConfigError(
            f"GEPA optimises prompts, and backend {config.backend} trains weights: use backend "
            "api, where provider.name=local:RUN plays with trained weights"
        )
    # The judge is asked for nothing but reflections: that opens its provider.
    writer = config.behaviors.provider or config.judge.provider
    share = SHARE if config.credit.share is None else config.credit.share
    return config.model_copy(
        update={
            "search": config.search.model_copy(update={"strategy": "chains", "joint": "aligned"}),
            "judge": config.judge.model_copy(update={"enabled": True, "provider": writer}),
            "behaviors": config.behaviors.model_copy(update={"enabled": False}),
            "credit": config.credit.model_copy(update={"share": share}),
            "curriculum": "none",
            "trackers": TrackersConfig(),
        }
    )


def _rows(record: EpisodeRecord, role: str) -> Iterator[dict[str, str]]:
    """An agent's turns in the trajectories that have credits."""
    for leaf in dict.fromkeys(one.leaf for one in record.credits):
        for node in record.path(leaf):
            for turn in node.turns:
                if turn.agent == role:
                    seen = (one.content for one in turn.messages if one.role != "system")
                    yield {
                        "Inputs": "\n\n".join(seen),
                        "Generated Outputs": turn.completion.told,
                        "Feedback": _feedback(record, leaf, role),
                    }


def _feedback(record: EpisodeRecord, leaf: str, role: str) -> str:
    """What an agent is told of a trajectory that it took part in."""
    score = record.node(leaf).score
    parts = ", ".join(f"{part.name} {part.value:.2f}" for part in score.parts)
    credits = {one.agent: one for one in record.credits if one.leaf == leaf}
    others = ", ".join(f"{a} {one.credit:+.2f}" for a, one in credits.items() if a != role)
    own = credits[role]
    said = (
        f"The team's reward was {score.total:.2f} of 1 ({parts}). On average it gets "
        f"{record.mean_leaf_reward:.2f} for this problem.",
        score.feedback,
        f"Of the difference, this agent ({role}) caused {own.credit:+.2f} (95 % interval "
        f"{own.low:+.2f} to {own.high:+.2f}){f', and the others: {others}' if others else ''}. "
        "Near 0 means that it is not this agent's work that made the difference.",
    )
    return "\n".join(filter(None, said))
