"""The values that all layers share, and the protocols between layers.

A value that crosses disk or network is a frozen pydantic model; one that stays in memory is a
frozen dataclass. Nothing here does input or output, so any layer may import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from orchestry.core.choices import SPLITS as SPLITS
from orchestry.core.choices import Split as Split
from orchestry.core.sandboxed import Call as Call
from orchestry.core.sandboxed import CallResult as CallResult
from orchestry.core.sandboxed import Limits as Limits
from orchestry.core.sandboxed import Sandbox as Sandbox
from orchestry.core.sandboxed import Verdict as Verdict
from orchestry.core.seeds import derive
from orchestry.core.tools import (
    ANY,
    TOO_MANY,
    Said,
    Tool,
    ToolCall,
    ToolServer,
    ToolSpec,
    as_tools,
    named_once,
    told_call,
    unmarked,
)
from orchestry.core.values import ROOT as ROOT
from orchestry.core.values import Frozen as Frozen
from orchestry.core.values import NodeId as NodeId
from orchestry.core.values import utf8 as utf8

Source = Literal["leaf", "judge", "task"]
"""Of a node's value: the leaves below it, the central judge, or the task's score."""
Purpose = Literal["act", "judge", "credit", "distil", "trial", "dev", "embed"]
"""What a call is for: a turn, a judgement, a replay, new behaviours, their trial, a dev problem, or
embeddings for a program, which are in the completion's `extra`."""
MAX_CHARS = 200_000
"""Longer answers are cut, about 50,000 tokens of English text."""
StateT = TypeVar("StateT")


class Problem(Frozen):
    """One instance of a task. `data` holds what the reward needs; agents see only `observe`."""

    id: str
    prompt: str
    data: Mapping[str, Any] = Field(default_factory=dict)
    split: Split = "train"

    def __hash__(self) -> int:
        return hash(self.id)


def _empty(found: Any) -> bool:
    """Fields that came later are left out where they say nothing: keys stay as they were."""
    return not found


class AgentSpec(Frozen):
    """One member of the team."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    role: str
    goal: str = ""
    system_prompt: str = ""
    tools: Annotated[tuple[Tool | ToolServer, ...], BeforeValidator(as_tools)] = Field(
        (), exclude=True
    )
    """What it may call before it answers: typed functions, what `tool` made of them, servers."""
    max_calls: int = Field(8, ge=1)
    """Calls in one turn; then it must answer."""
    programmed: bool = Field(False, exclude_if=_empty)
    """Whether a program of the user's own writes its prompts, so that none is made here."""

    @property
    def every_tool(self) -> tuple[Tool, ...]:
        """All tools, those of servers too, which are reached for that. Raises ConfigError if one
        can't be, or if two tools have one name."""
        return named_once(self.role, self.tools)


class Message(Frozen):
    """One message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = Field((), exclude_if=_empty)
    """The tools that an assistant's message calls."""
    call: str = Field("", exclude_if=_empty)
    """The id of the call whose result a tool's message is."""
    extra: str = Field("", exclude_if=_empty)
    """What its server added and wants back; see core.extras."""


class Example(Frozen):
    """One observation, and a good answer to it."""

    asked: str = Field(min_length=1)
    answered: str = Field(min_length=1)

    @property
    def messages(self) -> tuple[Message, Message]:
        """As turns of a chat, where models of all sizes take them for what they are: in a system
        prompt, small ones copy them."""
        return (
            Message(role="user", content=self.asked),
            Message(role="assistant", content=self.answered),
        )


@dataclass(frozen=True, slots=True)
class Member:
    """One agent with this run's settings: prompt, model, and limits of its answers."""

    role: str
    system_prompt: str
    model: str
    max_tokens: int
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    """Shown as earlier turns of the chat, before each observation."""
    frozen: bool = False
    """Whether its weights stay as they are while others learn."""
    tools: tuple[ToolSpec, ...] = ()
    """What it may call."""


class Request(Frozen):
    """One sample asked of one agent.

    `sample_index` distinguishes the k samples of one state, so that the cache keeps them apart.
    `temperature` None means the provider's own default.
    """

    agent: str
    purpose: Purpose = "act"
    model: str
    messages: tuple[Message, ...]
    max_tokens: int = Field(ge=1)
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    sample_index: int = 0
    seed: int = 0
    response_schema: Mapping[str, Any] | None = None
    """JSON schema of a structured answer. Providers enforce it; readers check it again."""
    tools: tuple[ToolSpec, ...] = Field((), exclude_if=_empty)
    """What the agent may call instead of answering."""
    must_answer: bool = Field(False, exclude_if=_empty)
    """Whether it may call nothing more, though earlier messages have calls."""
    must_call: str = Field("", exclude_if=_empty)
    """The tool that the answer must call, or ANY; '': it need not call one."""
    problem: Problem | None = Field(None, exclude=True)
    """For the tools that are called; no model sees it, and no cache key or file includes it."""
    state: Any = Field(None, exclude=True)
    """The task's state, also for them alone."""
    path: str = Field("", exclude=True)
    """Digest of the answers that led to the state."""
    programmed: bool = Field(False, exclude=True)
    """Whether a program of the user's own asks, which is told if the call is refused."""
    rank: int = Field(0, exclude=True)
    """The episode's number: lower ones go first if money or slots are short. In no cache key."""

    @property
    def may_call(self) -> bool:
        """Whether the answer may be a call."""
        return bool(self.tools) and not self.must_answer

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that it may call: of one that it must call, nothing but that, because models
        and servers may not know `tool_choice`, or ignore it."""
        return tuple(one for one in self.tools if self.must_call in ("", ANY, one.name))

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """All schemas that are sent, and billed."""
        own = [self.response_schema] if self.response_schema is not None else []
        return [*own, *(one.model_dump() for one in self.tools)]


class Tokens(Frozen):
    """Token ids that a policy with open weights saw and drew, and log-probabilities in nats."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    served: tuple[float, ...] = Field((), exclude=True)
    """Those of the server that drew them, if any, after its rounding and truncation. In no file."""


class Completion(Frozen):
    """One answer, with what it cost. `input_tokens` includes cached and cache-written ones."""

    text: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    usd: float = 0.0
    stop: str = "end"
    failed: str = ""
    """Why it failed for good; the sample is dropped, unless a program is told. '': it did not."""
    tokens: Tokens | None = None
    calls: tuple[ToolCall, ...] = Field((), exclude_if=_empty)
    """The tools that it calls instead of answering; in a program's move, the program makes them."""
    extra: str = Field("", exclude_if=_empty)
    thoughts: str = Field("", exclude_if=_empty)
    """What stood in its text between <think> and </think>: nobody is shown it."""
    steps: tuple[Step, ...] = Field((), exclude_if=_empty)
    """What came before it in a move with tools, whose counts and dollars are those here."""

    @property
    def void(self) -> Literal["", "too_long", "refused", "failed"]:
        """Which stand-in for an answer it is, whatever a vendor calls its stop; '': none."""
        if self.failed:
            return "refused" if self.stop == "refused" else "failed"
        return "too_long" if self.stop == "too_long" and not (self.text or self.calls) else ""

    @property
    def answers(self) -> tuple[Completion, ...]:
        """All that the model said in the move, itself last."""
        return (*(step.said for step in self.steps), self)

    @property
    def action(self) -> str:
        """What the task is given: the text, with the calls that were made or are left over."""
        made = [*(call for step in self.steps for call in step.made), *self.calls]
        return Said(self.text, made) if made else self.text

    @property
    def told(self) -> str:
        """For judges: the text, its calls with their results, cut, and calls left to a program."""
        lines = (*(step.told for step in self.steps), *map(told_call, self.calls))
        return "\n".join(filter(None, (unmarked(self.text), *lines)))


class Step(Frozen):
    """One round of a move with tools: what the agent said, and the results of its calls."""

    said: Completion
    results: tuple[str, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """As later calls of the model see it."""
        calls = self.said.calls
        said = Message(role="assistant", content=self.said.text, calls=calls, extra=self.said.extra)
        results = zip(calls, self.results, strict=True)
        return said, *(Message(role="tool", content=text, call=one.id) for one, text in results)

    @property
    def made(self) -> list[ToolCall]:
        """The calls that were not refused."""
        pairs = zip(self.said.calls, self.results, strict=True)
        return [call for call, result in pairs if result != TOO_MANY]

    @property
    def told(self) -> str:
        """As text, a line per call."""
        return "\n".join(map(told_call, self.said.calls, self.results))


class Turn(Frozen):
    """One agent's move: what it saw and what it answered."""

    agent: str
    messages: tuple[Message, ...]
    completion: Completion
    tools: tuple[ToolSpec, ...] = Field((), exclude_if=_empty)
    """What a program let the agent call; an agent's own tools are in its AgentSpec."""

    @property
    def mark(self) -> bytes:
        """The agent, its answer, and its calls with their results, for digests of a path."""
        steps = "".join(
            step.model_dump_json(include={"said": {"calls"}, "results": True})
            for step in self.completion.steps
        )
        return f"\x1e{self.agent}\x1f{self.completion.text}{steps}".encode()


class Part(Frozen):
    """One named part of a score."""

    name: str
    value: float
    weight: float = 1.0


TASK_ERROR = "task_error"
"""The tag of a trajectory that ended because the task raised on an answer."""


class Score(Frozen):
    """A reward in parts. `feedback` is prose for judge and library, `tags` are counted."""

    parts: tuple[Part, ...]
    feedback: str = ""
    tags: tuple[str, ...] = ()
    returns: tuple[float, ...] = Field((), exclude_if=lambda found: not found)
    """Of a game, each agent's raw return so far, in the order of the task's agents; () elsewhere.
    Backend ppo learns from such numbers, the others from `total`."""

    @property
    def total(self) -> float:
        """The weighted mean of the parts; NaN if there are none or all weights are zero."""
        weight = sum(part.weight for part in self.parts)
        if weight == 0:
            return float("nan")
        return sum(part.value * part.weight for part in self.parts) / weight


class Value(Frozen):
    """A node's value and its source."""

    number: float = Field(ge=0.0, le=1.0)
    source: Source
    feedback: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory(Generic[StateT]):
    """A path from the root of an episode's tree. `extend` returns a child; self is unchanged."""

    id: NodeId
    problem: Problem
    seed: int
    state: StateT
    turns: tuple[Turn, ...] = ()
    score: Score | None = None
    fault: Exception | None = None
    """The error that the task raised on the last answers, or when it prepared the next prompts."""

    @property
    def failed(self) -> bool:
        """Whether the task raised on an answer: the trajectory is over and scores 0."""
        return self.fault is not None or bool(self.score and TASK_ERROR in self.score.tags)

    def extend(self, index: int, state: StateT, turns: Sequence[Turn]) -> Trajectory[StateT]:
        """The child after the `index`-th sampled joint action."""
        return replace(
            self,
            id=self.id.child(index),
            state=state,
            turns=(*self.turns, *turns),
            score=None,
        )


Rate = Callable[[Sequence[Trajectory[Any]]], Awaitable[list[Score]]]
"""Scores trajectories, in order."""


class Trial(Frozen):
    """A behaviour on trial in a group: which samples were drawn with it in the agent's prompt."""

    agent: str
    behavior: str
    drawn: tuple[bool, ...]
    """One per sample, in the order of the group's children."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An agent with a behaviour on trial."""

    behavior: str
    member: Member


@dataclass(frozen=True, slots=True)
class Group:
    """The siblings of one state and the agents that moved: none where programs were started.

    `children` has one id per sample, in sample order; samples that led to equal states name the
    same child, so a baseline over the group still counts every sample.
    """

    parent: NodeId
    agents: tuple[str, ...]
    children: tuple[NodeId, ...]
    trials: tuple[Trial, ...] = ()


Outcome = Literal["rated", "repaired", "malformed"]
"""How a judgement was obtained: at once, after one repair, or not at all."""


class Judgement(Frozen):
    """A judge's values for one sibling set, one per child in order; empty if malformed.

    `opinions` are the judge's own numbers, before calibration by people's ratings. `weight` is the
    judge's share in a node's value; the rest is the task's score. If the judge rates only some
    sibling sets, its values are `relative`: they compare siblings, not sets.
    """

    values: tuple[Value, ...] = ()
    opinions: tuple[float, ...] = ()
    weight: float
    relative: bool = False
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Siblings(Generic[StateT]):
    """The distinct children of one state, for a judge. Each has its task's score."""

    parent: Trajectory[StateT]
    agents: tuple[str, ...]
    """Who moved."""
    children: tuple[Trajectory[StateT], ...]
    ended: frozenset[NodeId]
    """Ids of the children that end the episode; evaluate() decides their value."""

    @property
    def over(self) -> bool:
        """Whether all children end the episode."""
        return len(self.ended) == len(self.children)


@dataclass(slots=True)
class Node(Generic[StateT]):
    """One state of a tree, and what is known about it."""

    trajectory: Trajectory[StateT]
    value: Value | None = None
    """Its value; None for the root until its leaves are known."""
    judged: Value | None = None
    """If the judge rated it: the judge's number mixed with the task's score."""
    opinion: float | None = None
    """The judge's own number, in [0, 1], before mixing."""
    survived: bool = False
    """Whether the search continued from it, or it is a leaf."""
    leaf: bool = False
    """Whether the episode ended there."""

    @property
    def id(self) -> NodeId:
        return self.trajectory.id

    @property
    def number(self) -> float:
        """Its value in [0, 1]. Raises ValueError if it has none yet."""
        if self.value is None:
            raise ValueError(f"node {self.id} has no value yet")
        return self.value.number

    @property
    def total(self) -> float:
        """The task's score; 0 if it gave none."""
        return self.trajectory.score.total if self.trajectory.score else 0.0


@dataclass(slots=True)
class Tree(Generic[StateT]):
    """One episode: its nodes by id and its sibling groups, both in the order of play."""

    nodes: dict[NodeId, Node[StateT]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    """The judge's results, one per sibling set."""
    answers: list[Completion] = field(default_factory=list)
    """Every sample drawn, including those of merged siblings: what the episode cost."""
    failures: list[str] = field(default_factory=list)
    """Why samples are missing, one per sample: the first of its calls that failed for good."""

    def add(self, trajectory: Trajectory[StateT]) -> Node[StateT]:
        """Adds the node of a trajectory; its value is its score until more is known."""
        node = self.nodes[trajectory.id] = Node(trajectory)
        if score := trajectory.score:
            node.value = Value(number=score.total, source="task", feedback=score.feedback)
        return node

    @property
    def root(self) -> Node[StateT]:
        """The state in which the episode began."""
        return self.nodes[ROOT]

    @property
    def leaves(self) -> list[Node[StateT]]:
        """The nodes with which the episode ended, in the order of play."""
        return [node for node in self.nodes.values() if node.leaf]

    def siblings(self, group: Group) -> list[Node[StateT]]:
        """One node per sample of the group; samples with equal states share a node."""
        return [self.nodes[child] for child in group.children]


# --- protocols between layers -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tools:
    """What `evaluate` may touch besides its arguments."""

    sandbox: Sandbox


class Policy(Protocol):
    """Draws a team's answers, from an API or from local weights."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` samples for every request, in order; sample j carries sample_index j.

        A sample whose call failed for good has `failed` set.
        """
        ...


class Judge(Protocol):
    """A central critic, which sees what all agents said."""

    async def values(self, siblings: Siblings[Any]) -> Judgement | None:
        """One value per child; None if the task's scores already differ."""
        ...


class Provider(Protocol):
    """One attempt at one completion, at one vendor. Retry, cache and ledger live above it."""

    name: str
    base_url: str
    model: str
    """The model that answers if the config names none."""
    deterministic: bool
    """Same request, same answer: two runs with one seed are equal."""
    cacheable: bool
    """Whether answers may be shared between runs through the cache."""
    bills_unanswered: bool
    """Whether a call that was sent but never answered may have been billed."""
    slots: int | None
    """How many calls it answers at the same time; None: no limit."""

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """Answers, or raises ProviderError. Completion.usd stays 0; the gateway adds the price.

        `shared`: other samples of the same prompt are asked too, so marking it for the vendor's
        prompt cache pays. `started` is called when the answer begins to arrive.
        """
        ...

    def input_bound(self, request: Request) -> int:
        """The most input tokens that can be billed for the request."""
        ...

    def leads(self, request: Request) -> bool:
        """Whether k samples cost less if one is sent first to fill the prompt cache."""
        ...

    async def __aenter__(self) -> Provider: ...

    async def __aexit__(self, *exc: object) -> None: ...


def sample_of(request: Request, number: int) -> Request:
    """The sample `number` places after the request's own."""
    index = request.sample_index + number
    return request.model_copy(update={"sample_index": index, "seed": derive(request.seed, index)})
