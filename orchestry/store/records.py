"""An episode on disk: the flattened search tree, one line of episodes.jsonl.

Each node holds only its own move; `parent` leads to the rest of the trajectory.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field, field_validator, model_validator

from orchestry.core.digests import text_digest
from orchestry.core.types import Frozen, NodeId, Part, Score, Source, Split, Trial, Turn
from orchestry.store.progress import MEAN, RECENT

Reward = Annotated[float, Field(ge=0.0, le=1.0)]


class NodeRecord(Frozen, allow_inf_nan=False):
    """One state of the tree, and the joint action that led to it."""

    id: str
    parent: str | None
    turns: tuple[Turn, ...]
    value: Reward | None
    source: Source | None
    survived: bool
    judged: Reward | None = None
    """The judge's own number, before mixing; None if it was not asked."""
    judge_feedback: str = ""
    score: Score = Score(parts=())
    """The task's score; at the root it has no parts."""

    @model_validator(mode="before")
    @classmethod
    def _read_0_1_0(cls, data: Any) -> Any:
        """Version 0.1.0 wrote the score's fields into the node."""
        if not isinstance(data, dict) or not (found := Score.model_fields.keys() & data.keys()):
            return data
        rest = {name: value for name, value in data.items() if name not in found}
        return {**rest, "score": {name: data[name] for name in found}}

    @field_validator("score")
    @classmethod
    def _is_finite(cls, score: Score) -> Score:
        """As when it was given: see `task.guard`."""
        if score.parts and not 0.0 <= score.total <= 1.0:
            raise ValueError(f"its parts come to {score.total:g}, which is not in [0, 1]")
        return score

    @property
    def place(self) -> NodeId:
        """Its id in the tree, which can be ordered and has a stage."""
        return NodeId.of(self.id)


def _with_reward(node: NodeRecord, reward: float) -> NodeRecord:
    parts = (Part(name="person", value=reward),)
    score = node.score.model_copy(update={"parts": parts})
    return node.model_copy(update={"score": score, "value": reward})


class GroupRecord(Frozen, allow_inf_nan=False):
    """The samples of one state: ids, values and mean-centred advantages, all of shape (G,)."""

    parent: str
    agents: tuple[str, ...]
    children: tuple[str, ...]
    source: Source
    values: tuple[float, ...]
    advantages: tuple[float, ...]
    trials: tuple[Trial, ...] = ()
    """Behaviours that some of the samples were drawn with."""


UNMEASURED = (
    "none: each move was drawn once in its state and not replayed, so the agents' parts in the "
    "reward are not known"
)
"""An episode's credit where it has no CreditRecord."""


class CreditRecord(Frozen, allow_inf_nan=False):
    """One agent's credit for the best or the worst trajectory.

    A credit is in units of the return: the sum, over the agent's moves, of the value after the move
    minus the value before it. The credits of all agents add up to the trajectory's return minus the
    value of the root. `low` and `high` are the ends of a 95 % interval.
    """

    agent: str
    leaf: str
    """The trajectory's leaf."""
    credit: float
    low: float
    high: float


class EpisodeRecord(Frozen, allow_inf_nan=False):
    """One problem, searched once. `best` is the leaf with the highest score.

    An episode that `failed` has no leaf; its rewards are 0 and enter no mean. Files keep the names
    `reward` for what is shown as the best of k, and `mean_leaf_reward` for what is shown as the
    reward.
    """

    episode: int
    problem: str
    split: Split
    seed: int
    best: str
    reward: Reward
    """Of the best trajectory."""
    mean_leaf_reward: Reward
    """The mean over all trajectories."""
    calls: int
    """Samples drawn, whether paid, cached or replayed."""
    usd: float
    input_tokens: int
    output_tokens: int
    nodes: tuple[NodeRecord, ...]
    groups: tuple[GroupRecord, ...]
    judgements: dict[str, int] = Field(default_factory=dict)
    """How many sibling sets were rated, repaired, malformed."""
    credits: tuple[CreditRecord, ...] = ()
    """One per agent for the best leaf, then one per agent for the worst, if it is another leaf; ()
    if none was measured."""
    failed_calls: int = 0
    """Missing samples, because their calls failed for good."""
    left_out: dict[str, int] = Field(default_factory=dict, exclude_if=lambda found: not found)
    """Why they are missing, and how many for each reason; {} in runs until 0.2."""
    failed: str = ""
    """Why no trajectory finished; '' if one did."""
    credit_calls: int = 0
    """Samples drawn for credits, not counted in `calls`, `usd` and tokens."""

    def node(self, id: str) -> NodeRecord:
        """The node of that id."""
        return next(node for node in self.nodes if node.id == id)

    @property
    def best_node(self) -> NodeRecord:
        """The leaf that won."""
        return self.node(self.best)

    def path(self, id: str) -> list[NodeRecord]:
        """From the first move to the node of that id."""
        by_id = {node.id: node for node in self.nodes}
        path = list[NodeRecord]()
        node = by_id[id]
        while node.parent is not None:
            path.insert(0, node)
            node = by_id[node.parent]
        return path

    def answers(self, id: str) -> str:
        """Digest of all answers on the path to a node."""
        said = [turn.completion.text for node in self.path(id) for turn in node.turns]
        return text_digest(json.dumps(said))

    def with_rewards(self, rewards: Mapping[str, float]) -> EpisodeRecord:
        """For learning: with other rewards, in [0, 1], of some finished trajectories, by leaf.

        Credits stay as they were measured, so `best` is the best of the trajectories that have
        some. The reported `reward` and `mean_leaf_reward` stay the task's own.
        """
        nodes = tuple(
            _with_reward(node, rewards[node.id]) if node.id in rewards else node
            for node in self.nodes
        )
        found = self.model_copy(update={"nodes": nodes})
        known = {row.leaf for row in self.credits} or {self.best}
        ranked = [node for node in found.leaves() if node.id in known]
        best = max(ranked, key=lambda node: node.value or 0.0, default=self.best_node)
        return found.model_copy(update={"best": best.id})

    def tags(self) -> Counter[str]:
        """How many trajectories carry each tag."""
        return Counter(tag for node in self.trajectories() for tag in node.score.tags)

    def steps(self) -> int:
        """Steps of the task that were played: in each, all agents whose turn it is act."""
        return sum(bool(node.turns) for node in self.nodes)

    def lengths(self) -> Iterator[int]:
        """The steps of each evaluated trajectory."""
        for leaf in self.trajectories():
            yield sum(bool(node.turns) for node in self.path(leaf.id))

    @property
    def best_of_k(self) -> float:
        """The best trajectory's reward, under the word that is shown."""
        return self.reward

    @property
    def mean_reward(self) -> float:
        """The mean reward over all trajectories, under the word that is shown."""
        return self.mean_leaf_reward

    def parts(self) -> dict[str, float]:
        """The parts of the reward: means over all trajectories, 0 where one lacks a part."""
        rows = [{one.name: one.value for one in x.score.parts} for x in self.trajectories()]
        return {
            name: fmean(row.get(name, 0.0) for row in rows) for name in dict.fromkeys(chain(*rows))
        }

    def trajectories(self) -> list[NodeRecord]:
        """The leaf of each finished trajectory; one to which several samples led, as often."""
        times = Counter({node.id: 1 for node in self.nodes if node.parent is None})
        for group in self.groups:
            for child in group.children:
                times[child] += times[group.parent]
        return [leaf for leaf in self.leaves() for _ in range(max(1, times[leaf.id]))]

    def leaves(self) -> Iterator[NodeRecord]:
        """The surviving nodes without children."""
        parents = {node.parent for node in self.nodes}
        return (node for node in self.nodes if node.survived and node.id not in parents)


class UsageRecord(Frozen):
    """The figures of one agent's calls of one purpose."""

    agent: str
    purpose: str
    provider: str = ""
    """Who was asked; "" in runs of orchestry 0.1."""
    calls: int
    cache_hits: int
    input_tokens: int
    output_tokens: int
    usd: float
    unspoken: int = Field(0, exclude_if=lambda found: not found)
    """Answers that reached their token limit before any visible text: thoughts used all of it."""


MOST_POINTS = 100.0
"""No change of a reward is larger."""


class Power(Frozen):
    """What the pairs that a run plays on dev can show of a change of its prompts."""

    pairs: float
    calls: float
    """Of these pairs."""
    gain: float
    """The mean gain in reward that they show with a chance of 80 %."""

    def __str__(self) -> str:
        if not self.calls:
            return "no change of a prompt was tried on dev, so no gain could be found"
        gain, half = 100.0 * self.gain, 50.0 * self.gain
        if self.pairs < 1.0 or gain >= MOST_POINTS:
            return f"{self.pairs:.0f} pairs on dev ({self.calls:.0f} calls) can't find any gain"
        return (
            f"{self.pairs:.0f} pairs on dev ({self.calls:.0f} calls) find a gain of {gain:.1f} "
            f"points in 80 of 100 runs; {half:.1f} points take four times the calls"
        )


OLD_MEAN = "mean_trajectory_reward"
"""The mean over all trajectories, in a summary.json of old."""


class Summary(Frozen):
    """A run in one object: summary.json, and what `--json` prints."""

    run_dir: str
    task: str
    backend: str
    strategy: str
    baseline: str | None = None
    """The baseline that was played; see `RunConfig.baseline`."""
    provider: str
    model: str
    model_sha256: str | None = None
    stopped: Literal["done", "budget", "away", "interrupted", "failed"]
    episodes: int
    """Episodes finished, failed ones included."""
    failed_episodes: int = 0
    """Episodes without a finished trajectory; they enter no mean and no tag count."""
    failed_calls: int = 0
    """Calls of any purpose that failed for good; their samples are missing."""
    refused_calls: int = 0
    """Calls that were refused to programs, which were told why; no sample is missing."""
    episodes_asked: int
    """All that are finished, if an earlier call asked for more."""
    calls: int
    """Answers from models; answers from the cache count in `cache_hits`."""
    cache_hits: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    lost_usd: float
    """The part of cost_usd for calls that may have been billed but were never answered."""
    budget_usd: float | None
    mean_reward: float | None
    """The mean over all trajectories, each episode counting once: the measure of a policy."""
    trajectories: int = 0
    """Those that the means are over."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Trajectories that no mean has, since calls of theirs failed for good: how many, by reason."""
    left_out_episodes: dict[str, int] = Field(default_factory=dict)
    """Episodes that no mean has, since none of their trajectories finished: how many, by reason."""
    partial: bool = False
    """Whether the means are over fewer than 90 % of the finished episodes, or of the
    trajectories."""
    best_of_k: float | None = None
    """The mean over episodes of the best trajectory's reward: the measure of a search."""
    best_reward: float | None
    best_episode: int | None
    tags: dict[str, int]
    """How many evaluated trajectories carry each tag, of `leaves` in all."""
    leaves: int = 0
    solved: str | None = None
    """The tag of a trajectory that solved its problem, if the task has one."""
    schemes: tuple[str, ...] = ()
    """The ways of working together that the task knows, by the end of their tags `scheme_NAME`."""
    cost_by_use: dict[str, float] = Field(default_factory=dict)
    """Dollars for search, judge, credit and learning."""
    cost_by_provider: dict[str, float] = Field(default_factory=dict)
    """Dollars of answered calls by provider, if more than one was asked."""
    calls_by_provider: dict[str, int] = Field(default_factory=dict)
    """Answers by provider, if more than one was asked."""
    judgements: dict[str, int] = Field(default_factory=dict)
    """How many sibling sets the judge rated, rated after a repair, and left malformed."""
    updates: int = 0
    """Updates of the library of behaviours, or of the weights."""
    taught: int | None = None
    """Backend local: updates that had something to learn from."""
    learning: dict[str, float] = Field(default_factory=dict)
    """Backend local: figures of the last update, such as `entropy` and `truncated`."""
    dev_rewards: dict[str, float] = Field(default_factory=dict)
    """Backend local: mean rewards on dev `before`, at the `last` evaluation and at the `best`."""
    best_update: int | None = None
    """The update of that best; its checkpoint is kept."""
    accepted: int = 0
    """Behaviours in the agents' prompts."""
    prompt_diff: str = ""
    """What the library changed in the system prompts: a unified diff."""
    power: Power | None = None
    """What its pairs on dev could show; smaller gains may have been missed."""
    usage: tuple[UsageRecord, ...]
    seconds: float
    """Wall-clock seconds of this process."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        """Until 0.2 `mean_reward` was the mean of the best, and the other had a name of its own."""
        if not isinstance(data, dict) or not {"mean_reward", OLD_MEAN} <= data.keys():
            return data
        rest = {name: value for name, value in data.items() if name != OLD_MEAN}
        if "best_of_k" in data:
            return rest
        return {**rest, "mean_reward": data[OLD_MEAN], "best_of_k": data["mean_reward"]}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mean_trajectory_reward(self) -> float | None:
        """An older name of `mean_reward`."""
        return self.mean_reward

    @property
    def objective(self) -> float | None:
        """What a run is chosen by: a search by its best of k, a policy by its reward."""
        search = self.strategy in ("beam", "best_of_n")
        return self.best_of_k if search else self.mean_reward


class Metrics:
    """Rows of metrics.jsonl: an episode's figures, and running ones up to it."""

    def __init__(self) -> None:
        self.count = 0
        self.total = self.total_best = self.best = self.usd = 0.0
        self._recent = deque[float](maxlen=RECENT)

    def row(self, record: EpisodeRecord) -> dict[str, float]:
        """The next episode's row."""
        self.count += 1
        self.total += record.mean_reward
        self.total_best += record.best_of_k
        self.best = max(self.best, record.best_of_k)
        self.usd += record.usd
        self._recent.append(record.mean_reward)
        spread = [abs(a) for group in record.groups for a in group.advantages]
        answers = [turn.completion for node in record.nodes for turn in node.turns]
        return {
            "episode": record.episode,
            "reward": record.mean_reward,
            "best_of_k": record.best_of_k,
            "mean_leaf_reward": record.mean_leaf_reward,
            "mean_reward": self.total / self.count,
            "mean_best_of_k": self.total_best / self.count,
            "best_reward": self.best,
            MEAN: fmean(self._recent),
            "episode/length": fmean(record.lengths()),
            "mean_abs_advantage": sum(spread) / len(spread) if spread else 0.0,
            "calls": record.calls,
            "leaves": len(record.trajectories()),
            "answer_tokens": sum(one.output_tokens for one in answers) / max(1, len(answers)),
            "truncated": sum(one.stop == "length" for one in answers) / max(1, len(answers)),
            "usd": record.usd,
            "total_usd": self.usd,
            **{f"part/{name}": value for name, value in record.parts().items()},
            **{f"tag/{tag}": float(count) for tag, count in sorted(record.tags().items())},
        }


def rewards_csv(records: Sequence[EpisodeRecord], *, header: bool) -> str:
    """`episode,total,<part>...,best_of_k` rows, so that df.plot(x='episode', y='total') works:
    means over the episode's trajectories, and the total of the best."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for record in records:
        parts = record.parts()
        if header:
            writer.writerow(["episode", "total", *parts, "best_of_k"])
            header = False
        writer.writerow([record.episode, record.mean_reward, *parts.values(), record.best_of_k])
    return out.getvalue()
