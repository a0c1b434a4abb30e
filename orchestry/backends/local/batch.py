"""Turns finished episodes into an update's data: actions, their groups and advantages.

A group is a set of actions that are compared. `turn` (the default, MAGRPO) compares one agent's
actions in one stage over all chains of a problem. `history` compares only actions with the same
history: the agent-and-turn-wise groups of AT-GRPO (arXiv 2510.11062), whose samples share their
prompt. Independent chains rarely share a later history, and an action alone in its group teaches
nothing; `search.branch=tree` draws k samples in every state, as AT-GRPO does. `agent` compares all
actions of one agent in a problem, in any stage: with `rewards="final"` and `normalise=True` it is
the agent-wise normalisation of Dr. MAS (arXiv 2602.08847, section 4.2: mean and standard deviation
of R over all steps at which the agent acts).

Equation 2's mean counts every action alike. Where problems have groups of different sizes, or a
tree has more samples in later stages, that would favour what has more of them. There every action
counts by its share (`shares`), and the gradient's mean is that of equal groups and of chains. It is
so for sizes that don't depend on the group's own samples: (R_g - mean of the others) times
grad log pi(a_g) has the mean of the policy gradient for every size from 2 on. With R_g - mean(R) it
is (G - 1) / G of that; `like` makes it the same for all sizes. A tree needs it too: its groups are
larger in later stages (`turn`), or where siblings happened to say the same (`history`).

A group whose returns are all equal contributes exactly 0 in any case, so leaving it out of the sum
changes nothing. Dividing by the number of groups that are left, or drawing other problems until
enough are left (DAPO's dynamic sampling, arXiv 2503.14476), makes the step longer by one over the
share of groups that are left; it does not turn the step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import fsum, isfinite
from typing import Any, Literal

from orchestry.backends.local.credit import Counterfactuals
from orchestry.backends.local.magrpo import Baseline, action_returns, gae, group_advantages, returns
from orchestry.core.errors import LearnError
from orchestry.core.types import Completion, Group, NodeId, Tokens, Trajectory, Tree, Turn
from orchestry.rollout.schedule import Joint

_Rewards = Literal["differences", "final", "turns"]
Grouping = Literal["turn", "history", "agent"]
History = tuple[str, tuple[int, ...]]
"""An agent and the prompt it saw."""
COMLRL_TEMPERATURE = 1.0
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One agent's action, its history, and its advantage within its group."""

    agent: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Includes the EOS if the answer ended by itself."""
    logprobs: tuple[float, ...]
    """Nats, one per token of `ids`, of the drawing policy at the sampling temperature."""
    advantage: float
    group: int
    """Samples of one group share a history, so their prompt is computed once."""
    served: tuple[float, ...] = ()
    """Those of the server that drew it, if there is one."""
    later: bool = False
    """Whether it is a later answer of the same move, after calls of tools."""


@dataclass(frozen=True, slots=True)
class Packed:
    """One row: a prompt, and answers to it, all of one agent."""

    agent_index: int
    prompt_ids: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]
    """The ids of each answer (never empty), with its end token if it has one."""

    @property
    def tokens(self) -> int:
        """Number of computed tokens: an answer's last token is predicted but never read."""
        return len(self.prompt_ids) + sum(len(ids) - 1 for ids in self.completions)


@dataclass(frozen=True, slots=True)
class Batch:
    """The actions that change weights, and the number of all actions."""

    samples: tuple[Sample, ...]
    actions: Mapping[str, int]
    """Number of all actions per agent, including skipped ones: the denominator of equation 2's
    mean."""

    @property
    def skipped(self) -> int:
        """Actions with advantage exactly zero, which need no forward pass."""
        return sum(self.actions.values()) - sum(not one.later for one in self.samples)


@dataclass(frozen=True, slots=True)
class Action:
    """One agent's action in one state, and its return over all joint actions with it."""

    agent: str
    stage: int
    state: NodeId
    """The next state; under `cross` the first of several."""
    answers: tuple[Tokens, ...]
    """One, or with tools all of the move: each has the calls and results before it in its prompt.
    The log-probability of the move is their sum, so each has the move's advantage."""
    return_: float
    share: float
    """Of its stage in its problem: one over the samples of its state, times the same of each state
    before."""

    @property
    def history(self) -> tuple[int, ...]:
        """The prompt of the move."""
        return self.answers[0].prompt_ids


def gather(
    trees: Sequence[Tree[Any]],
    *,
    joint: Joint = "aligned",
    rewards: _Rewards = "turns",
    discount: float = 1.0,
    grouping: Grouping = "turn",
    baseline: Baseline = "mean",
    normalise: bool = False,
    skip: bool = True,
    credits: Sequence[Counterfactuals] | None = None,
    frozen: Collection[str] = (),
    shares: bool = False,
    like: int | None = None,
    values: Sequence[Mapping[NodeId, float]] | None = None,
    trace: float = 0.95,
) -> Batch:
    """The actions of finished episodes, played by Chains or Branching with the same `joint`.

    Args:
        rewards: by `turns` a stage earns the task's score after it (the paper's multi-turn), so
            early work counts often where a task scores the work so far. By `final` the last stage
            earns the final score. By `differences` a stage earns the score after it minus the score
            before it (0 before the first). These sum to the final score, so with discount 1 the
            return is the final score minus the score before the action. What is subtracted does not
            depend on the action, so with groups of `turn` or `history` the expected gradient is
            that of `final`. Where a judge or a person rated the finished trajectory, its judged
            value takes the place of the last score: (1 - weight) * score + weight * rating.
        discount: of a reward one stage later.
        grouping: what is compared, within one episode: see the module.
        baseline, normalise: as in `magrpo.advantages`.
        skip: leaves out actions of zero advantage; a KL term needs them kept.
        credits: by `credit.counterfactuals`, one per tree. Then an action's advantage is its
            agent's own, and grouping, baseline and normalise are not used. Final scores are
            compared: the score before the action is the same in all plays.
        frozen: agents whose actions are left out; they may have no tokens.
        shares: an agent's mean weighs its actions by their shares, so that problems, and stages of
            one problem, count alike whatever they have of samples (see the module).
        like: baseline `mean` gives groups of any size the expectation that one of this size has.
        values: a critic's estimates of each state's return, one mapping per tree. Then advantages
            are those of `magrpo.gae` with `trace`; no grouping, baseline or normalise is used.

    Samples of equal agent and prompt have one number `group`. Under `cross` an action's return is
    the mean over the joint actions of its stage with it, taken before the baseline, so that
    leave-one-out leaves out all that holds the action.

    Raises LearnError if an answer has no tokens, a score is missing or not finite, siblings were
    merged, joint actions do not match `joint`, or returns are unknown because of pruning.
    """
    rewards, found = rewards if credits is None else "final", list[tuple[Action, float]]()
    for number, tree in enumerate(trees):
        known = values[number] if values is not None else None
        drawn = _actions(tree, joint, _reached(tree, rewards, discount, known, trace), frozen)
        if credits is not None:
            found += _credited(drawn, credits[number])
        elif values is not None:
            found += [(action, action.return_) for action in drawn]
        else:
            found += _compared(drawn, grouping, baseline, normalise, like)
    return _batch(_by_share(found) if shares else found, skip)


def _batch(found: Sequence[tuple[Action, float]], skip: bool) -> Batch:
    samples, numbers = list[Sample](), dict[History, int]()
    for action, advantage in found:
        if skip and advantage == 0.0:
            continue
        for place, tokens in enumerate(action.answers):
            group = numbers.setdefault((action.agent, tokens.prompt_ids), len(numbers))
            samples.append(_sample(action.agent, tokens, advantage, group, later=place > 0))
    actions = Counter(action.agent for action, _ in found)
    return Batch(samples=tuple(samples), actions=dict(actions))


def _by_share(found: Sequence[tuple[Action, float]]) -> list[tuple[Action, float]]:
    """Advantages whose sum over an agent's actions, divided by their number, is the mean of those
    given, weighed by the actions' shares."""
    shares = defaultdict[str, list[float]](list)
    for action, _ in found:
        shares[action.agent].append(action.share)
    times = {agent: len(each) / fsum(each) for agent, each in shares.items()}
    return [(a, advantage * a.share * times[a.agent]) for a, advantage in found]


def _sample(agent: str, tokens: Tokens, advantage: float, group: int, *, later: bool) -> Sample:
    return Sample(
        agent,
        tokens.prompt_ids,
        tokens.ids,
        tokens.logprobs,
        advantage,
        group,
        tokens.served,
        later,
    )


def _compared(
    drawn: Sequence[Action],
    grouping: Grouping,
    baseline: Baseline,
    normalise: bool,
    like: int | None,
) -> list[tuple[Action, float]]:
    """The actions of one episode in the order of play, each with its advantage."""
    scale = 1.0
    if like is not None and baseline == "mean":
        baseline, scale = "leave_one_out", (like - 1) / like
    groups: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for index, action in enumerate(drawn):
        key: dict[Grouping, tuple[Any, ...]] = {
            "turn": (action.agent, action.stage),
            "history": (action.agent, action.stage, action.history),
            "agent": (action.agent,),
        }
        groups[key[grouping]].append(index)
    found = [0.0] * len(drawn)
    for indices in groups.values():
        returns_G = [drawn[index].return_ for index in indices]
        advantages_G = group_advantages(returns_G, baseline=baseline, normalise=normalise)
        for index, advantage in zip(indices, advantages_G, strict=True):
            found[index] = advantage * scale
    return list(zip(drawn, found, strict=True))


def _credited(
    drawn: Sequence[Action], counterfactuals: Counterfactuals
) -> list[tuple[Action, float]]:
    """The actions of one episode with their advantages: the mean difference to their
    counterfactuals' scores, exactly 0.0 if all are equal."""
    found = list[tuple[Action, float]]()
    for action in drawn:
        others = counterfactuals[action.state, action.agent]
        found.append((action, fsum(action.return_ - other for other in others) / len(others)))
    return found


def state_returns(tree: Tree[Any], rewards: _Rewards, discount: float) -> dict[NodeId, float]:
    """The return of each reached state: its own reward and the mean return of what was drawn in it.

    If a judge or a person rated a finished trajectory, its last reward is that judged value.
    """
    found, ahead = dict[NodeId, float](), defaultdict[NodeId, list[float]](list)
    for node in reversed(tree.nodes.values()):  # every child before its parent
        here, parent, after = node.trajectory, node.id.parent, ahead.pop(node.id, [])
        if parent is None:
            continue
        if not (after or node.leaf) and (rewards == "final" or discount):
            raise LearnError(
                f"state {here.id} of problem {here.problem.id} was pruned, so its return is "
                "unknown: learn from independent chains, or from each stage's own score "
                "(rewards='turns', discount=0)"
            )
        score = _score(here)
        if node.leaf and node.judged is not None:
            score = node.judged.number
        if after:  # differences: the sum of discounted ones, rearranged
            score *= {"turns": 1.0, "final": 0.0, "differences": 1.0 - discount}[rewards]
        mean = fsum(after) / len(after) if after else 0.0
        return_ = returns((score, mean), discount)[0]
        ahead[parent].append(return_)
        if rewards == "differences":  # rounded, so that equal returns stay equal
            before = _score(tree.nodes[parent].trajectory) if parent.parent is not None else 0.0
            return_ = round(return_ - before, _DIGITS)
        found[node.id] = return_
    return found


def _reached(
    tree: Tree[Any],
    rewards: _Rewards,
    discount: float,
    values: Mapping[NodeId, float] | None,
    trace: float,
) -> dict[NodeId, float]:
    """Of each reached state, the return; with a critic's values the advantage of what led to it, to
    which the mean advantage of what was drawn after it counts."""
    if values is None:
        return state_returns(tree, rewards, discount)
    # a stage's own reward is its return where nothing later counts
    earned, found = state_returns(tree, rewards, 0.0), dict[NodeId, float]()
    ahead = defaultdict[NodeId, list[float]](list)
    for node in reversed(tree.nodes.values()):  # every child before its parent
        parent, after = node.id.parent, ahead.pop(node.id, [0.0])
        if parent is not None:
            mean, value = fsum(after) / len(after), values.get(node.id, 0.0)
            found[node.id] = gae(earned[node.id], values[parent], value, mean, discount, trace)
            ahead[parent].append(found[node.id])
    return found


def _score(node: Trajectory[Any]) -> float:
    total = node.score.total if node.score else None
    if total is None or not isfinite(total):
        found = "no score" if total is None else f"a score of {total}"
        raise LearnError(
            f"state {node.id} of problem {node.problem.id} has {found}: evaluate must give every "
            "reachable state a finite one"
        )
    return total


def _actions(
    tree: Tree[Any],
    joint: Joint,
    returns_by_state: Mapping[NodeId, float],
    frozen: Collection[str],
) -> list[Action]:
    """Every drawn action of those who learn, once, in the order of play."""
    found, share = list[Action](), {tree.root.id: 1.0}
    for group in tree.groups:
        children = [node.trajectory for node in tree.siblings(group)]
        share |= {child.id: share[group.parent] / len(children) for child in children}
        problem, stage = children[0].problem.id, group.parent.stage + 1
        place = f"state {group.parent} of problem {problem}"
        if len(set(group.children)) < len(children):
            raise LearnError(
                f"siblings below {place} were collapsed, so answers are missing: learn from a "
                "schedule with collapse=False"
            )
        returns_J = [returns_by_state[child.id] for child in children]
        if not group.agents:  # a first stage in which programs were started
            continue
        moves = list(_moves(group, children, returns_J, joint, place))
        own = share[group.parent] * len(group.agents) / len(moves)
        found += [
            Action(turn.agent, stage, state, _answers(turn, place), return_, own)
            for turn, state, return_ in moves
            if turn.agent not in frozen
            if _drawn(turn)
        ]
    return found


def _moves(
    group: Group,
    children: Sequence[Trajectory[Any]],
    returns_J: Sequence[float],
    joint: Joint,
    place: str,
) -> Iterator[tuple[Turn, NodeId, float]]:
    """Each agent's actions in one state, in sample order, with the next state and the return."""
    agents = len(group.agents)
    turns_J = [child.turns[-agents:] for child in children]
    if joint == "aligned":
        for agent in range(agents):
            for turns, child, return_ in zip(turns_J, children, returns_J, strict=True):
                yield turns[agent], child.id, return_
        return
    mixed = f"the joint actions in {place} are not `cross`: name the one they were drawn with"
    try:
        returns_N_G = action_returns(returns_J, agents)
    except ValueError:
        raise LearnError(mixed) from None
    for agent, returns_G in enumerate(returns_N_G):
        block = len(returns_G) ** (agents - 1 - agent)
        drawn = [turns_J[action * block][agent] for action in range(len(returns_G))]
        if any(turns[agent] != drawn[j // block % len(drawn)] for j, turns in enumerate(turns_J)):
            raise LearnError(mixed)
        firsts = [children[action * block].id for action in range(len(returns_G))]
        yield from zip(drawn, firsts, returns_G, strict=True)


def _drawn(turn: Turn) -> list[Completion]:
    """What the agent's policy drew in a move: no answer to a prompt that was too long, or that was
    refused."""
    return [one for one in turn.completion.answers if not one.void]


def _answers(turn: Turn, place: str) -> tuple[Tokens, ...]:
    """The tokens of all that the agent drew in a move."""
    return tuple(_tokens(one, turn.agent, place) for one in _drawn(turn))


def _tokens(said: Completion, agent: str, place: str) -> Tokens:
    tokens = said.tokens
    if tokens is None or not tokens.ids:
        raise LearnError(
            f"the answer of {agent} in {place} has no tokens: gradients need a policy that "
            "records what it draws (backend local)"
        )
    if len(tokens.ids) != len(tokens.logprobs):
        raise LearnError(
            f"the answer of {agent} in {place} has {len(tokens.ids)} tokens but "
            f"{len(tokens.logprobs)} log-probabilities: the policy must record one per token"
        )
    return tokens


def packed(index: int, samples: Sequence[Sample]) -> tuple[list[Packed], list[Sample]]:
    """One agent's actions by history, and the samples in the same order."""
    groups: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if not sample.ids:
            raise LearnError(f"an answer of {sample.agent} has no tokens: nothing to learn from")
        groups[sample.group].append(sample)
    packed = [
        Packed(index, group[0].prompt_ids, tuple(sample.ids for sample in group))
        for group in groups.values()
    ]
    return packed, [sample for group in groups.values() for sample in group]


def as_comlrl(
    groups: Sequence[Packed], advantages: Sequence[float], pad_id: int
) -> tuple[list[Packed], list[float]]:
    """The rows and advantages of CoMLRL 1.4.3's loss, for comparing gradients, not for learning.

    `MAGRPOTrainer._compute_loss_with_gradients` there sums, at COMLRL_TEMPERATURE whatever the
    answers were drawn at, the log-probabilities of rows that are padded to the longest answer of
    their group, less the last column. So padding behind a shorter answer is trained, and the end of
    the longest is not. Returns those rows and their advantages, one per answer.

    A group holds all answers to its prompt, or the longest would not be known. A group whose
    longest answer has one token has nothing left to train, and falls out.
    """
    kept, own = list[Packed](), list[float]()
    left = iter(advantages)
    for group in groups:
        mine = list(islice(left, len(group.completions)))
        if width := max(map(len, group.completions)) - 1:
            rows = tuple((*ids, *[pad_id] * width)[:width] for ids in group.completions)
            kept.append(replace(group, completions=rows))
            own += mine
    return kept, own
