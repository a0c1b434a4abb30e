"""The frozen values that every layer shares, and the protocols that tie the layers together.

What crosses disk or network is a frozen pydantic model; what lives in memory only is a frozen
dataclass. Nothing here does input or output, so any layer may import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from orchestry.core.choices import SPLITS as SPLITS
from orchestry.core.choices import Split as Split
from orchestry.core.seeds import derive

Source = Literal["leaf", "judge", "task"]
"""The source of a node's value: the leaves below it, the central judge, or the task's score."""
MAX_CHARS = 200_000
"""A longer answer is cut: no max_tokens that a run can ask for makes one."""
StateT = TypeVar("StateT")


class Frozen(BaseModel):
    """A value: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Problem(Frozen):
    """One instance of a task. `data` holds what the reward needs; agents see only `observe`."""

    id: str
    prompt: str
    data: Mapping[str, Any] = Field(default_factory=dict)
    split: Split = "train"

    def __hash__(self) -> int:
        return hash(self.id)


class AgentSpec(Frozen):
    """One member of the team."""

    role: str
    goal: str = ""
    system_prompt: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One agent as this run asks it: its prompt, its model, and the limits of its answers."""

    role: str
    system_prompt: str
    model: str
    max_tokens: int
    temperature: float | None = None
    stop: tuple[str, ...] = ()


class Message(Frozen):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Request(Frozen):
    """One sample asked of one agent.

    `sample_index` tells the k samples of one state apart, so that a cache keeps them k samples.
    `temperature` None means the provider's own default.
    """

    agent: str
    purpose: str = "act"
    model: str
    messages: tuple[Message, ...]
    max_tokens: int = Field(ge=1)
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    sample_index: int = 0
    seed: int = 0
    response_schema: Mapping[str, Any] | None = None
    """JSON schema of the answer, for a structured one: objects whose every property is required
    and no other allowed, arrays, strings, enums. Providers enforce it; readers check it again."""
    rank: int = Field(0, exclude=True)
    """Lower ones are served first where money or places are short: the episode's number. It is no
    part of what is asked, so no key holds it and no file."""


class Tokens(Frozen):
    """What a policy with open weights saw and drew: ids, and log-probabilities in nats."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


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
    """Why there is no answer, where the call failed for good: the sample is to be left out."""
    tokens: Tokens | None = None


class Turn(Frozen):
    """One agent's move: what it saw and what it answered."""

    agent: str
    messages: tuple[Message, ...]
    completion: Completion


class Part(Frozen):
    """One named part of a score."""

    name: str
    value: float
    weight: float = 1.0


TASK_ERROR = "task_error"
"""The tag of a trajectory that ended because the task could not digest an answer on its way."""


class Score(Frozen):
    """A reward in parts. `feedback` is prose for judge and library, `tags` are counted."""

    parts: tuple[Part, ...]
    feedback: str = ""
    tags: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """The weighted mean of the parts; NaN where all weights are zero or there are no parts."""
        weight = sum(part.weight for part in self.parts)
        if weight == 0:
            return float("nan")
        return sum(part.value * part.weight for part in self.parts) / weight


class Value(Frozen):
    """How good a node is, and who says so."""

    number: float = Field(ge=0.0, le=1.0)
    source: Source
    feedback: str = ""


class NodeId(tuple[int | str, ...]):
    """A place in an episode's tree: which sample was followed in each stage, () for the root.

    Ids are ordered as the nodes are played. In text, as records have them, `0.2.1` is the second
    child of the third child of the root. A play beside the tree has a name as its last steps.
    """

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> NodeId:
        """The id that a record has as text."""
        return cls(int(step) for step in text.split(".")[1:])

    def __str__(self) -> str:
        return ".".join(("0", *map(str, self)))

    def child(self, step: int | str) -> NodeId:
        """The id one stage on."""
        return NodeId((*self, step))

    @property
    def parent(self) -> NodeId | None:
        """The id one stage before; None for the root."""
        return NodeId(self[:-1]) if self else None

    @property
    def stage(self) -> int:
        """How many stages were played before the node."""
        return len(self)

    @property
    def path(self) -> list[NodeId]:
        """The ids from the root to this one, itself included."""
        return [NodeId(self[:end]) for end in range(len(self) + 1)]


ROOT = NodeId()


@dataclass(frozen=True, slots=True)
class Trajectory(Generic[StateT]):
    """A path from the root of an episode's tree. `extend` makes a child and leaves self alone."""

    id: NodeId
    problem: Problem
    seed: int
    state: StateT
    turns: tuple[Turn, ...] = ()
    score: Score | None = None
    fault: Exception | None = None
    """What the task raised on the last answers, or where agents were to be asked after them."""

    @property
    def failed(self) -> bool:
        """Whether the task could not digest an answer on the way: it is over, and scores 0."""
        tagged = self.score is not None and TASK_ERROR in self.score.tags
        return tagged or self.fault is not None

    def extend(self, index: int, state: StateT, turns: Sequence[Turn]) -> Trajectory[StateT]:
        """The child that the `index`-th sampled joint action leads to."""
        return replace(
            self,
            id=self.id.child(index),
            state=state,
            turns=(*self.turns, *turns),
            score=None,
        )


Rate = Callable[[Sequence[Trajectory[Any]]], Awaitable[list[Score]]]
"""Scores each of some trajectories."""


@dataclass(frozen=True, slots=True)
class Group:
    """The siblings of one state and the agents that moved.

    `children` has one id per sample, in sample order; samples that led to equal states name the
    same child, so a baseline over the group still counts every sample.
    """

    parent: NodeId
    agents: tuple[str, ...]
    children: tuple[NodeId, ...]


Outcome = Literal["rated", "repaired", "malformed"]
"""How a judgement was got: at once, after one repair, or not at all."""


class Judgement(Frozen):
    """What a judge says of one sibling set: one value per child, in their order; none if malformed.

    `opinions` are the judge's own numbers, before people's ratings corrected them. `weight` is the
    judge's share in a node's value; the rest is the task's score. Where the judge is asked about
    some sibling sets only, its values are `relative`: good for comparing siblings, not sets.
    """

    values: tuple[Value, ...] = ()
    opinions: tuple[float, ...] = ()
    weight: float
    relative: bool = False
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Siblings(Generic[StateT]):
    """The distinct children of one state, as a judge sees them. Each carries its task's score."""

    parent: Trajectory[StateT]
    agents: tuple[str, ...]
    """Who moved."""
    children: tuple[Trajectory[StateT], ...]
    ended: frozenset[NodeId]
    """Ids of the children with which the episode ends: of these evaluate() had the last word."""

    @property
    def over(self) -> bool:
        """Whether the episode ends with all of them."""
        return len(self.ended) == len(self.children)


@dataclass(slots=True)
class Node(Generic[StateT]):
    """One state of a tree, and what is known of it."""

    trajectory: Trajectory[StateT]
    value: Value | None = None
    """Its value; None for the root until its leaves are known."""
    judged: Value | None = None
    """Its value by the judge, who rated it: the judge's number mixed with the task's score."""
    opinion: float | None = None
    """The judge's own number, in [0, 1], before mixing."""
    survived: bool = False
    """Whether it was gone on from, or is a leaf."""
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
    """What came of asking the judge, a sibling set each."""
    answers: list[Completion] = field(default_factory=list)
    """Every sample drawn, those of collapsed siblings included: what the episode cost."""
    failures: list[str] = field(default_factory=list)
    """Why samples are missing, one per call that failed for good."""

    def add(self, trajectory: Trajectory[StateT]) -> Node[StateT]:
        """The node of one more trajectory; its value is its score until more is known."""
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
        """One node per sample of the group: several are the same node where states were equal."""
        return [self.nodes[child] for child in group.children]


# --- protocols: the seams between layers -------------------------------------------------------

Verdict = Literal["value", "error", "timeout", "memory", "output"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a candidate's function. Arguments are JSON values; tuples and sets survive."""

    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one sandboxed call: its value, or why there is none."""

    verdict: Verdict
    value: Any = None
    why: str = ""
    trace: str = ""
    """The candidate's own frames of what it raised, one per line."""


class Limits(Frozen):
    """What one run of a candidate, all its calls together, may use."""

    wall_s: float = Field(6.0, ge=0.1, le=3600.0, allow_inf_nan=False)
    """Seconds on the wall clock. Beyond `cpu_s`, so that load turns no right answer wrong."""
    cpu_s: float = Field(2.0, ge=0.1, le=3600.0, allow_inf_nan=False)
    """Seconds of CPU time; one call may use half of them, so that others still get theirs."""
    memory_mb: int = Field(256, ge=64, le=1 << 20)
    """MiB of address space, beside what the interpreter itself maps."""
    output_kb: int = Field(256, ge=1, le=1 << 16)
    """KiB of what all calls of a run return and raise, together; of one call in a test's."""
    processes: int = Field(16, ge=1, le=4096)
    """Threads, the first one included; other processes are never allowed where code is confined."""
    recursion: int = Field(1000, ge=50, le=1_000_000)
    """Nested calls in the candidate, as `sys.setrecursionlimit` counts them."""


class Sandbox(Protocol):
    """Runs code that a language model wrote; the caller compares, never the child."""

    async def run(
        self, code: str, entry_point: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> list[CallResult]:
        """One result per call, in order."""
        ...

    async def check(
        self, code: str, entry_point: str, test: str, limits: Limits | None = None
    ) -> CallResult:
        """Runs `check(candidate)` of `test`, as HumanEval has it, beside the candidate.

        The test runs in a process of its own, in which `candidate` calls the code's `entry_point`
        in another one, so that the code never sees the asserts. The value is (asserts that held,
        asserts), `why` names the first that did not.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What `evaluate` may touch besides its arguments."""

    sandbox: Sandbox


class Policy(Protocol):
    """A team's sampler: over an API, or over weights."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` samples for every request, in order; sample j carries sample_index j.

        One whose call failed for good says so in `failed`.
        """
        ...


class Judge(Protocol):
    """A central critic, which sees what all agents said."""

    async def values(self, siblings: Siblings[Any]) -> Judgement | None:
        """One value per child; None if the task's own score already tells the children apart."""
        ...


class Provider(Protocol):
    """One attempt at one completion, at one vendor. Retry, cache and ledger live above it."""

    name: str
    base_url: str
    model: str
    """The model that answers where the config names none."""
    deterministic: bool
    """Same request, same answer: two runs with one seed are equal."""
    cacheable: bool
    """Whether answers may be shared between runs through the cache."""
    bills_unanswered: bool
    """Whether a call that was sent but never answered may have been billed."""
    slots: int | None
    """Calls that it answers at once; None: no limit of its own."""

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """Answers, or raises ProviderError. Completion.usd is left 0: prices are not its job.

        `shared` says that other samples of the same prompt are asked too, so that marking it for
        the vendor's prompt cache pays; `started` is called when the answer begins to arrive.
        """
        ...

    def input_bound(self, request: Request) -> int:
        """No more input tokens than this can be billed for the request."""
        ...

    def leads(self, request: Request) -> bool:
        """Whether k samples of this prompt cost less if one goes first to fill the prompt cache."""
        ...

    async def __aenter__(self) -> Provider: ...

    async def __aexit__(self, *exc: object) -> None: ...


def sample_of(request: Request, number: int) -> Request:
    """The number-th sample from the request's own on."""
    index = request.sample_index + number
    return request.model_copy(update={"sample_index": index, "seed": derive(request.seed, index)})


def clean(completion: Completion, max_chars: int = MAX_CHARS) -> Completion:
    """The answer as text that every file takes: valid Unicode, and of bounded length."""
    read = {name: getattr(completion, name) for name in ("text", "model", "stop")}
    fixed = {name: good for name, raw in read.items() if (good := utf8(raw)) != raw}
    text = fixed.get("text", completion.text)
    if len(text) > max_chars:
        fixed |= {"text": text[:max_chars], "stop": "cut"}
    return completion.model_copy(update=fixed) if fixed else completion


def utf8(text: str) -> str:
    """Surrogates that stand alone, which JSON can carry and UTF-8 can't, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
