"""Plays episodes, for every backend and every baseline.

One stage asks every acting agent of every live state for its samples in one batch, applies them,
scores the children, and lets the schedule say which of them live on.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from orchestry.core.concurrency import together
from orchestry.core.errors import TaskFault
from orchestry.core.seeds import derive
from orchestry.core.thoughts import kind_of
from orchestry.core.types import (
    ROOT,
    Completion,
    Group,
    Judge,
    Member,
    Message,
    Node,
    NodeId,
    Policy,
    Problem,
    Purpose,
    Rate,
    Request,
    Score,
    Siblings,
    StateT,
    Tools,
    Trajectory,
    Tree,
    Trial,
    Turn,
    Variant,
)
from orchestry.rollout.schedule import Candidate, Chains, Schedule
from orchestry.rollout.tree import apply, back_up, order
from orchestry.task.arrangements import unwrapped
from orchestry.task.base import BaseTask
from orchestry.task.guard import (
    MAX_STAGES,
    actors,
    count_stages,
    endless,
    evaluated,
    task_boundary,
    tells,
)
from orchestry.task.programs.agent_task import AgentTask, Ask, Conversation

if TYPE_CHECKING:
    from orchestry.task.programs.host import Rollouts

TOLD_CHARS = 2000
"""Limit on the feedback that a task is told, so that prompts have a maximum length."""


@dataclass(frozen=True, slots=True)
class Move:
    """One sample of one agent in a state."""

    request: Request
    answer: Completion
    tried: bool
    """Whether it was drawn with the behaviour on trial."""

    @property
    def missing(self) -> bool:
        """Whether the call failed for good, and no program is told that it was refused."""
        return self.answer.void == "failed"

    @property
    def turn(self) -> Turn:
        """As it stands in the trajectory."""
        request = self.request
        tools = request.tools if request.programmed else ()
        return Turn(
            agent=request.agent, messages=request.messages, completion=self.answer, tools=tools
        )


@dataclass(frozen=True, slots=True)
class Rollout(Generic[StateT]):
    """Plays episodes of one task with one team, one policy and one schedule."""

    in_step: ClassVar[bool] = False
    """Whether all samples of a stage are drawn together."""

    task: BaseTask[StateT]
    team: Mapping[str, Member]
    policy: Policy
    rate: Rate
    schedule: Schedule
    judge: Judge | None = None
    purpose: Purpose = "act"
    """The purpose of the calls, for the ledger."""
    seeds: Mapping[str, int] = field(default_factory=dict)
    """By role, in place of the episode's seed for that agent's samples."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Agents with a behaviour on trial, by role. In the last stage, in which every sample gets the
    task's score, about half of an agent's samples are drawn so: a comparison in the same state, or
    between the states where each has one sample, at no further cost. In earlier stages only the
    samples that survive are worth the reward of what follows, which makes no fair comparison."""

    async def play(self, problem: Problem, seed: int) -> Tree[StateT]:
        """Plays one episode; equal arguments and answers give an equal tree.

        A sample whose call failed makes no child. If all samples of a state failed, that branch
        ends. A tree without leaves is a failed episode.

        Raises TaskError if the task breaks its contract.
        """
        with self._programs() as programs:
            tree = await self._grown(problem, seed, programs)
        if self.judge is not None and isinstance(self.schedule, Chains):
            await self._judge(tree, [_whole_plays(tree)], self.judge)
        back_up(tree)
        return tree

    def _programs(self) -> AbstractContextManager[Rollouts | None]:
        """Of an AgentTask whose programs are run: starts one per chain, and lets go of them at the
        end."""
        host = self.task.host if isinstance(self.task, AgentTask) else None
        embeds = None if self.in_step else self.policy  # weights that draw together embed nothing
        return host.rollouts(embeds) if host else nullcontext()

    async def _grown(self, problem: Problem, seed: int, programs: Rollouts | None) -> Tree[StateT]:
        """The tree, stage by stage."""
        with task_boundary(self.task, "reset", problem):
            root = Trajectory(ROOT, problem, seed, self.task.reset(problem, seed))
        tree = Tree[StateT]()
        tree.add(root).survived = True
        if programs is None:
            await self._stages(tree, self._going([tree.root]), 0)
        else:
            await self._chains(tree, programs)
        return tree

    async def _stages(self, tree: Tree[StateT], pool: Sequence[Node[StateT]], stage: int) -> None:
        """Plays on from the pool, until nobody acts."""
        problem, seed = tree.root.trajectory.problem, tree.root.trajectory.seed
        while pool:
            if stage == MAX_STAGES:
                raise endless(self.task, problem)
            going = self._going(await self._stage(tree, pool, stage))
            candidates = [Candidate(node.id, node.number) for node in going]
            kept = self.schedule.prune(candidates, derive(seed, "prune", stage))
            pool = [tree.nodes[id] for id in sorted(kept)]
            for node in pool:
                node.survived = True
            stage += 1

    async def _chains(self, tree: Tree[StateT], programs: Rollouts) -> None:
        """Plays a program per chain, since it can't be copied. Each goes on as fast as it can,
        unless all draw together; the tree is the same in any case."""
        places = range(self.schedule.samples(0, 1))
        ids = tuple(tree.root.id.child(place) for place in places)
        tree.groups.append(Group(ROOT, (), ids))  # a first stage in which nobody acts
        starts = [self._started(tree, programs, place) for place in places]
        if self.in_step:
            await self._stages(tree, self._going(await together(starts)), 1)
        else:
            await together(self._alone(tree, start) for start in starts)
        order(tree)

    async def _started(self, tree: Tree[StateT], programs: Rollouts, place: int) -> Node[StateT]:
        """The state in which a program has made its first call."""
        root = tree.root.trajectory
        begins: Any = root.state
        state: Any = await programs.start(begins, derive(root.seed, "program", place))
        (child,) = await self._scored([root.extend(place, state, ())])
        return tree.add(child)

    async def _alone(self, tree: Tree[StateT], start: Awaitable[Node[StateT]]) -> None:
        """One chain to its end."""
        await self._stages(tree, self._going([await start]), 1)

    async def go_on(
        self, starts: Sequence[Trajectory[StateT]], seeds: Sequence[int], calls: float = math.inf
    ) -> list[Trajectory[StateT]]:
        """Plays each trajectory on with one sample per agent and stage, in lockstep.

        `play` branches and prunes; here all are known beforehand, and share each stage's calls.

        States on the path are scored only if the task tells its agents the score; final states are
        not scored. Samples depend on the play's seed, the earlier turns and the observation, so
        plays with one seed use common random numbers. At most `calls` moves are made, each of one
        call if no tools are used; a play that does not fit, or one with a failed call, is returned
        unfinished.
        """
        plays, alive = list(starts), list(range(len(starts)))
        for _ in range(MAX_STAGES):
            alive, moving = self._affordable(plays, alive, calls)
            if not moving:
                return plays
            calls -= len(moving)
            requests = [self.request(plays[i], agent, seeds[i]) for i, agent in moving]
            samples = await self.policy.sample(requests, 1)
            moves: dict[int, list[Turn]] = {i: [] for i in alive}
            for (i, agent), request, (answer,) in zip(moving, requests, samples, strict=True):
                if answer.failed:  # its play stops here
                    moves.pop(i, None)
                elif i in moves:
                    moves[i].append(Turn(agent=agent, messages=request.messages, completion=answer))
            alive = [*moves]
            for i, turns in moves.items():
                plays[i] = self.child(plays[i], 0, turns)
            await self.score_for_agents(plays, [*moves])
        raise endless(self.task, starts[0].problem)

    def _affordable(
        self, plays: Sequence[Trajectory[StateT]], alive: Sequence[int], calls: float
    ) -> tuple[list[int], list[tuple[int, str]]]:
        """Plays that continue and their next moves, in order of arrival."""
        going, moving = list[int](), list[tuple[int, str]]()
        for i in alive:
            actors = self.actors(plays[i])
            if actors and len(moving) + len(actors) <= calls:
                going.append(i)
                moving += [(i, agent) for agent in actors]
        return going, moving

    async def score_for_agents(self, plays: list[Trajectory[StateT]], moved: Sequence[int]) -> None:
        """Scores the plays that continue, if the task tells its agents the score. A play ends here
        if the task can't prompt its agents.
        """
        going = [i for i in moved if self.actors(plays[i])]
        if tells(self.task):
            scores = await self.rate([plays[i] for i in going])
            for i, score in zip(going, scores, strict=True):
                plays[i] = replace(plays[i], score=score)
        for i in going:
            plays[i] = replace(plays[i], fault=self._fault(plays[i]))

    def child(
        self, node: Trajectory[StateT], index: int, turns: Sequence[Turn]
    ) -> Trajectory[StateT]:
        """The trajectory after these turns, one per acting agent; `failed` if the task raises on
        them."""
        actions = {turn.agent: turn.completion.action for turn in turns}
        try:
            state = self._met(node)
            with task_boundary(self.task, "step", node.problem):
                state = self.task.step(state, actions)
                if self.schedule.collapse:
                    hash(state)
            child = node.extend(index, state, turns)
            self.actors(child)
        except TaskFault as fault:
            return replace(node.extend(index, node.state, turns), fault=fault)
        return child

    def _fault(self, node: Trajectory[StateT]) -> TaskFault | None:
        """The task's error when it prepares the next prompts; None if there is none."""
        try:
            for agent in self.actors(node):
                self.request(node, agent)
        except TaskFault as fault:
            return fault
        return None

    def _met(self, node: Trajectory[StateT]) -> StateT:
        """The state that the agents see; they may have been told its score.

        The trajectory keeps the original state, so that equal states stay equal.
        """
        if node.score is None:
            return node.state
        feedback = node.score.feedback[:TOLD_CHARS]
        with task_boundary(self.task, "told", node.problem):
            return self.task.told(node.state, node.score.model_copy(update={"feedback": feedback}))

    def actors(self, node: Trajectory[StateT]) -> tuple[str, ...]:
        """Who acts next; () at the end."""
        if node.failed:
            return ()
        return actors(self.task, node.problem, node.state)

    def _going(self, nodes: Sequence[Node[StateT]]) -> list[Node[StateT]]:
        """The trajectories that continue; the others are leaves."""
        for node in nodes:
            if not self.actors(node.trajectory):
                node.leaf = node.survived = True
        return [node for node in nodes if not node.leaf]

    async def _stage(
        self, tree: Tree[StateT], pool: Sequence[Node[StateT]], stage: int
    ) -> list[Node[StateT]]:
        """All samples of one stage in one batch; returns the distinct children, scored."""
        n = self.schedule.samples(stage, len(pool))
        acting = [(node.trajectory, self.actors(node.trajectory)) for node in pool]
        variants = self._trying(pool, stage)
        drawn = await self._draw(acting, n, variants)
        tree.answers += [move.answer for one in drawn for move in one if not move.missing]
        moves = iter(drawn)
        moved, groups = list[tuple[Trajectory[StateT], Sequence[Turn]]](), list[Group]()
        for node, (state, agents) in zip(pool, acting, strict=True):
            own = [next(moves) for _ in agents]
            tree.failures += _failures(own)
            group, born = self._branch(state, agents, _whole(own), variants)
            if born:
                groups.append(group)
            else:
                node.survived = False
            moved += [(child, child.turns[len(state.turns) :]) for child in born]
        tree.groups += groups
        children = await self._told(moved)
        found = [tree.add(child) for child in await self._scored(children)]
        if self.judge is not None and not isinstance(self.schedule, Chains):
            await self._judge(tree, groups, self.judge)
        return found

    async def _told(
        self, moved: Sequence[tuple[Trajectory[StateT], Sequence[Turn]]]
    ) -> list[Trajectory[StateT]]:
        """The children, after their programs were told the answers of the stage."""

        async def told(child: Trajectory[StateT], turns: Sequence[Turn]) -> Trajectory[StateT]:
            state: Any = child.state
            if state.program is None:
                return child
            after: Any = await state.program.go_on(state, turns)
            return replace(child, state=after)

        if not isinstance(self.task, AgentTask):
            return [child for child, _ in moved]
        return await together(told(*one) for one in moved)

    def _trying(self, pool: Sequence[Node[StateT]], stage: int) -> Mapping[str, Variant]:
        """The variants, in the last stage."""
        if not self.variants:
            return {}
        stages = count_stages(self.task, pool[0].trajectory.problem)
        return self.variants if stage == stages - 1 else {}

    async def _draw(
        self,
        acting: Sequence[tuple[Trajectory[StateT], Sequence[str]]],
        n: int,
        variants: Mapping[str, Variant],
    ) -> list[list[Move]]:
        """n samples of every agent in every state, in one batch; with variants, in one more for
        each number of samples that is asked of one prompt.

        A coin per episode says which arm begins: states stand in the order in which they were
        found, and the first is likelier than the last.
        """
        asked = list[list[tuple[Request, list[int], bool]]]()
        for place, (state, agents) in enumerate(acting):
            for turn, agent in enumerate(agents):
                tries = agent in variants and len(acting) * n > 1 << turn  # else one arm is empty
                first = derive(state.seed, "arm", agent) & 1
                bits = [(place * n + i >> turn & 1) ^ first for i in range(n)]
                own = [tries and bool(bit) for bit in bits]
                arms = [
                    (self.request(state, agent, member=member), places, tried)
                    for tried, member in self._arms(agent, variants)
                    if (places := [i for i in range(n) if own[i] == tried])
                ]
                asked.append(arms)
        return await _answered(self.policy, asked, n)

    def _arms(self, agent: str, variants: Mapping[str, Variant]) -> list[tuple[bool, Member]]:
        """Who may answer for the agent: itself, and with the behaviour on trial."""
        tried = [(True, variants[agent].member)] if agent in variants else []
        return [(False, self.team[agent]), *tried]

    async def _scored(self, children: Sequence[Trajectory[StateT]]) -> list[Trajectory[StateT]]:
        """The children with their scores; a child ends if the task can't prompt its agents."""
        rated = iter(await self.rate([one for one in children if not _waits(one)]))
        found = [
            replace(one, score=self.task.score() if _waits(one) else next(rated))
            for one in children
        ]
        faults = {place: fault for place, one in enumerate(found) if (fault := self._fault(one))}
        stuck = [replace(found[place], fault=fault) for place, fault in faults.items()]
        for place, one, score in zip(faults, stuck, await self.rate(stuck), strict=True):
            found[place] = replace(one, score=score)
        return found

    async def _judge(self, tree: Tree[StateT], groups: Sequence[Group], judge: Judge) -> None:
        """Lets the judge rate sibling sets, all at once: those of a stage, from which the search
        goes on; or all finished chains, which have no siblings after the first stage."""
        families = [self._siblings(tree, group) for group in groups if len(set(group.children)) > 1]
        judgements = await together(judge.values(family) for family in families)
        for family, judgement in zip(families, judgements, strict=True):
            if judgement is not None:
                apply(tree, family, judgement)

    def _siblings(self, tree: Tree[StateT], group: Group) -> Siblings[StateT]:
        children = tuple(tree.nodes[child].trajectory for child in dict.fromkeys(group.children))
        ended = frozenset(child.id for child in children if not self.actors(child))
        return Siblings(tree.nodes[group.parent].trajectory, group.agents, children, ended)

    def _branch(
        self,
        node: Trajectory[StateT],
        agents: Sequence[str],
        moves: Sequence[Sequence[Move]],
        variants: Mapping[str, Variant],
    ) -> tuple[Group, list[Trajectory[StateT]]]:
        """One child per joint action; samples that lead to equal states share a child."""
        combine = product if self.schedule.joint == "cross" else zip
        joints = list(combine(*moves))
        ids, born = list[NodeId](), dict[Any, Trajectory[StateT]]()
        for index, joint in enumerate(joints):
            child = self.child(node, index, [move.turn for move in joint])
            key = child.fault or (child.state if self.schedule.collapse else index)
            ids.append(born.setdefault(key, child).id)
        trials = tuple(
            Trial(agent=agent, behavior=variants[agent].behavior, drawn=drawn)
            for agent, drawn in zip(agents, _tried(joints), strict=False)  # all may have failed
            if agent in variants
        )
        group = Group(node.id, tuple(agents), tuple(ids), trials)
        return group, list(born.values())

    def request(
        self,
        node: Trajectory[StateT],
        agent: str,
        play_seed: int | None = None,
        member: Member | None = None,
    ) -> Request:
        """The request to an agent in a state; `play_seed` replaces the episode's seed and the
        node's id, `member` the agent of the team.
        """
        member, state = member or self.team[agent], self._met(node)
        with task_boundary(self.task, "observe", node.problem):
            observation = self.task.observe(state, agent)
            observation.encode()  # files and servers refuse lone surrogates
        tools = () if kind_of(observation) else member.tools
        asked = Ask(agent, (Message(role="user", content=observation),), tools)
        place: tuple[object, ...] = (node.id,)
        if programmed := isinstance(state, Conversation):
            asked = state.ask(agent)
            place = (*node.id[:1], asked.place)
        return Request(
            agent=agent,
            purpose=self.purpose,
            model=member.model,
            messages=asked.shown(member),
            max_tokens=min(member.max_tokens, asked.max_tokens or member.max_tokens),
            temperature=member.temperature,
            stop=(*member.stop, *asked.stop),
            response_schema=asked.schema,
            tools=asked.tools,
            must_answer=asked.must_answer,
            must_call=asked.must_call,
            problem=node.problem,
            state=unwrapped(state),
            path=_path(node) if member.tools else "",
            programmed=programmed,
            seed=derive(self.seeds.get(agent, node.seed), *place, agent)
            if play_seed is None
            else derive(play_seed, len(node.turns), agent),
        )


def _waits(node: Trajectory[Any]) -> bool:
    """Whether a program waits for answers there: then there is nothing to score yet."""
    return isinstance(node.state, Conversation) and node.fault is None and bool(node.state.asks)


def task_rater(task: BaseTask[Any], tools: Tools) -> Rate:
    """Rates trajectories by the task's own evaluate. Raises TaskFault if it raises or returns an
    invalid score, or if the task already raised on the trajectory."""

    async def one(node: Trajectory[Any]) -> Score:
        if node.fault is not None:
            raise node.fault
        return await evaluated(task, node.problem, node.state, tools)

    async def rate(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        return await together(one(node) for node in nodes)

    return rate


def _path(node: Trajectory[Any]) -> str:
    """A digest of all answers and calls that led to a state."""
    return blake2b(b"".join(turn.mark for turn in node.turns), digest_size=16).hexdigest()


def _whole_plays(tree: Tree[Any]) -> Group:
    """The finished trajectories as one set, compared from the first state on."""
    agents = dict.fromkeys(agent for group in tree.groups for agent in group.agents)
    return Group(ROOT, tuple(agents), tuple(leaf.id for leaf in tree.leaves))


def _whole(moves: Sequence[Sequence[Move]]) -> list[list[Move]]:
    """The samples for which no agent's call failed."""
    joints = zip(*moves, strict=True)
    kept = [i for i, joint in enumerate(joints) if not any(move.missing for move in joint)]
    return [[one[place] for place in kept] for one in moves]


def _failures(moves: Sequence[Sequence[Move]]) -> list[str]:
    """Why each of the other samples is missing."""
    gone = ([move for move in joint if move.missing] for joint in zip(*moves, strict=True))
    return [missing[0].answer.failed for missing in gone if missing]


def _tried(joints: Sequence[Sequence[Move]]) -> list[tuple[bool, ...]]:
    """By agent, which joint actions have a move of its variant."""
    return [tuple(move.tried for move in moves) for moves in zip(*joints, strict=True)]


async def _answered(
    policy: Policy, asked: Sequence[Sequence[tuple[Request, list[int], bool]]], n: int
) -> list[list[Move]]:
    """The samples of each request at their places among an agent's n."""
    flat = [(k, *one) for k, arms in enumerate(asked) for one in arms]
    sizes = sorted({len(places) for _, _, places, _ in flat}, reverse=True)
    batches = [[one for one in flat if len(one[2]) == size] for size in sizes]
    samples = await together(
        policy.sample([request for _, request, _, _ in batch], size)
        for size, batch in zip(sizes, batches, strict=True)
    )
    found: list[dict[int, Move]] = [{} for _ in asked]
    for batch, rows in zip(batches, samples, strict=True):
        for (k, request, places, tried), answers in zip(batch, rows, strict=True):
            for place, answer in zip(places, answers, strict=True):
                found[k][place] = Move(request, answer, tried)
    return [[moves[place] for place in range(n)] for moves in found]
