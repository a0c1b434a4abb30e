"""Plays episodes, for every backend and every baseline.

One stage asks every acting agent of every live state for its samples in one batch, applies them,
scores the children, and lets the schedule say which of them live on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Generic

from orchestry.core.concurrency import together
from orchestry.core.errors import TaskFault
from orchestry.core.seeds import derive
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
    Turn,
)
from orchestry.rollout.schedule import Candidate, Chains, Schedule
from orchestry.rollout.tree import apply, back_up
from orchestry.task.base import BaseTask
from orchestry.task.guard import MAX_STAGES, actors, endless, evaluated, task_boundary, tells

TOLD_CHARS = 2000
"""Limit on the feedback that a task is told, so that prompts have a maximum length."""


@dataclass(frozen=True, slots=True)
class Rollout(Generic[StateT]):
    """Plays episodes of one task with one team, one policy and one schedule."""

    task: BaseTask[StateT]
    team: Mapping[str, Member]
    policy: Policy
    rate: Rate
    schedule: Schedule
    judge: Judge | None = None
    purpose: Purpose = "act"
    """The purpose of the calls, for the ledger."""

    async def play(self, problem: Problem, seed: int) -> Tree[StateT]:
        """Plays one episode; equal arguments and answers give an equal tree.

        A sample whose call failed makes no child. If all samples of a state failed, that branch
        ends. A tree without leaves is a failed episode.

        Raises TaskError if the task breaks its contract.
        """
        with task_boundary(self.task, "reset", problem):
            root = Trajectory(ROOT, problem, seed, self.task.reset(problem, seed))
        tree = Tree[StateT]()
        pool, stage = self._going([tree.add(root)]), 0
        tree.root.survived = True
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
        if self.judge is not None and isinstance(self.schedule, Chains):
            await self._judge(tree, [_whole_plays(tree)], self.judge)
        back_up(tree)
        return tree

    async def go_on(
        self, starts: Sequence[Trajectory[StateT]], seeds: Sequence[int], calls: float = math.inf
    ) -> list[Trajectory[StateT]]:
        """Plays each trajectory on with one sample per agent and stage, in lockstep.

        `play` branches and prunes; here all are known beforehand, and share each stage's calls.

        States on the path are scored only if the task tells its agents the score; final states are
        not scored. Samples depend on the play's seed, the earlier turns and the observation, so
        plays with one seed use common random numbers. At most `calls` calls are made; a play that
        does not fit, or one with a failed call, is returned unfinished.
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
        actions = {turn.agent: turn.completion.text for turn in turns}
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
        requests = [self.request(state, agent) for state, agents in acting for agent in agents]
        samples = await self.policy.sample(requests, n)
        for completion in (completion for one in samples for completion in one):
            if completion.failed:
                tree.failures.append(completion.failed)
            else:
                tree.answers.append(completion)
        answers = iter(zip(requests, samples, strict=True))
        children, groups = list[Trajectory[StateT]](), list[Group]()
        for node, (state, agents) in zip(pool, acting, strict=True):
            group, born = self._branch(state, _whole([next(answers) for _ in agents]))
            if born:
                groups.append(group)
            else:
                node.survived = False
            children += born
        tree.groups += groups
        found = [tree.add(child) for child in await self._scored(children)]
        if self.judge is not None and not isinstance(self.schedule, Chains):
            await self._judge(tree, groups, self.judge)
        return found

    async def _scored(self, children: Sequence[Trajectory[StateT]]) -> list[Trajectory[StateT]]:
        """The children with their scores; a child ends if the task can't prompt its agents."""
        scores = await self.rate(children)
        found = [replace(one, score=score) for one, score in zip(children, scores, strict=True)]
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
        self, node: Trajectory[StateT], moves: Sequence[tuple[Request, Sequence[Completion]]]
    ) -> tuple[Group, list[Trajectory[StateT]]]:
        """One child per joint action; samples that lead to equal states share a child."""
        combine = product if self.schedule.joint == "cross" else zip
        ids, born = list[NodeId](), dict[Any, Trajectory[StateT]]()
        for index, joint in enumerate(combine(*(answers for _, answers in moves))):
            turns = [
                Turn(agent=request.agent, messages=request.messages, completion=completion)
                for (request, _), completion in zip(moves, joint, strict=True)
            ]
            child = self.child(node, index, turns)
            key = child.fault or (child.state if self.schedule.collapse else index)
            ids.append(born.setdefault(key, child).id)
        agents = tuple(request.agent for request, _ in moves)
        return Group(parent=node.id, agents=agents, children=tuple(ids)), list(born.values())

    def request(
        self, node: Trajectory[StateT], agent: str, play_seed: int | None = None
    ) -> Request:
        """The request to an agent in a state; `play_seed` replaces the episode's seed and the
        node's id.
        """
        member, state = self.team[agent], self._met(node)
        with task_boundary(self.task, "observe", node.problem):
            observation = self.task.observe(state, agent)
            observation.encode()  # files and servers refuse lone surrogates
            messages = [Message(role="user", content=observation)]
        if member.system_prompt:
            messages.insert(0, Message(role="system", content=member.system_prompt))
        return Request(
            agent=agent,
            purpose=self.purpose,
            model=member.model,
            messages=tuple(messages),
            max_tokens=member.max_tokens,
            temperature=member.temperature,
            stop=member.stop,
            seed=derive(node.seed, node.id, agent)
            if play_seed is None
            else derive(play_seed, len(node.turns), agent),
        )


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


def _whole_plays(tree: Tree[Any]) -> Group:
    """The finished trajectories as one set, compared from the first state on."""
    agents = dict.fromkeys(agent for group in tree.groups for agent in group.agents)
    return Group(ROOT, tuple(agents), tuple(leaf.id for leaf in tree.leaves))


def _whole(
    moves: Sequence[tuple[Request, Sequence[Completion]]],
) -> list[tuple[Request, list[Completion]]]:
    """The samples for which no agent's call failed."""
    kept = [
        place
        for place, joint in enumerate(zip(*(samples for _, samples in moves), strict=True))
        if not any(completion.failed for completion in joint)
    ]
    return [(request, [samples[place] for place in kept]) for request, samples in moves]
