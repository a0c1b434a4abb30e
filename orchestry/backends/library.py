"""The library of behaviours, as a value and as a readable YAML file.

A behaviour is a short text for one agent's system prompt. Its status is one of:

- `candidate`: distilled, but not tried yet; also each one of another run.
- `trial`: it is in the race, and undecided.
- `accepted`: it won its race, and is in the prompt.
- `rejected`: it left the race without a shown gain.
- `retired`: it was accepted once, then stopped helping, gave way to a better one or was worked into
  a new prompt.
- `merged`: it says what another one says, which its note names; it is never tried.

Only `accepted` behaviours are used: a `rule` below the agent's own system prompt, a `prompt` in
place of it, an `example` as an earlier turn of the chat. A library is immutable; changes make a new
one.
"""

from __future__ import annotations

import difflib
import errno
import re
import unicodedata
from collections.abc import Collection, Mapping
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from orchestry.core.errors import ConfigError, reason, too_long
from orchestry.core.files import read_yaml
from orchestry.core.secrets import looks_like_key
from orchestry.core.types import Example, Frozen
from orchestry.task.registry import bundled

_Kind = Literal["rule", "example", "prompt"]
Status = Literal["accepted", "trial", "candidate", "rejected", "retired", "merged"]
STATUSES: tuple[str, ...] = get_args(Status)
MAX_TEXT = 4000
"""Maximum characters of a behaviour or its note."""
MAX_BEHAVIORS = 5000
MAX_FILE = 16 << 20
"""Maximum bytes of a library's file."""
NEAR = 0.6
"""Jaccard index from which two texts are near-duplicates. For pairs of code-review rules,
rewordings had 0.68 to 0.86, and different rules on one subject 0.09 to 0.45."""
IN_RUN = Path("behaviors", "library.yaml")
"""The library's path in a run."""
_STEERING = ("Cc", "Cf")
"""Unicode categories that may control a terminal or hide text: controls, formats."""
_HARMLESS = "\n\t\u200c\u200d"
"""Allowed exceptions: joiners, which some scripts and emoji need."""
HEADING = "## Learned from earlier episodes"
_ASKED, _ANSWERED = "Asked:\n", "\n\nAnswered:\n"
_NEGATIONS = {
    *("no", "not", "never", "none", "nothing", "neither", "nor", "without", "avoid", "cannot")
}


def _plain(text: str) -> str:
    """Refuses text that must not reach a terminal or a file."""
    if looks_like_key(text):
        raise ValueError("holds what looks like an API key: remove it")
    if any(unicodedata.category(char) in _STEERING for char in text if char not in _HARMLESS):
        raise ValueError("holds a control or an invisible character: remove it")
    return text


PlainText = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_plain)]
Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_plain)]
Reward = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]


class Evidence(Frozen):
    """The evidence of a paired trial on dev so far; rewards are in [0, 1], so lifts in [-1, 1]."""

    pairs: int = Field(0, ge=0)
    """Comparisons: dev episodes played with and without the behaviour under common seeds, and
    episodes of the search in which some samples of the last move were drawn with it."""
    lift: Reward = 0.0
    """Mean reward with it minus mean reward without it."""
    low: Reward = -1.0
    """Lower end of the lift's interval."""
    high: Reward = 1.0
    e_value: float = Field(1.0, ge=0.0, allow_inf_nan=False)
    """Evidence against `no gain`; from 1/level it accepts. In a retest: against `no harm`; from
    1/level it retires."""
    level: float = Field(0.0, ge=0.0, le=1.0)
    """This trial's level (chance of a false acceptance); 0 before it began."""
    update: int = Field(0, ge=0)
    """The update at which the trial last continued."""
    episodes: tuple[int, ...] = ()
    """Train episodes that it was made from."""
    problems: tuple[str, ...] = ()
    """Their problems, on which no search says anything of it."""
    calls: int = Field(0, ge=0)
    """Calls that its trial took."""
    usd: float = Field(0.0, ge=0.0, allow_inf_nan=False)

    def __str__(self) -> str:
        """As text, in points (hundredths of the reward).

        The interval is two-sided and valid whenever the trial stops, so it is wider than the
        decision needs. The e-value decides, and is shown beside its threshold.
        """
        if not self.pairs:
            return "not tried yet"
        low, high = 100 * self.low, 100 * self.high
        pairs = f"{self.pairs} pair" if self.pairs == 1 else f"{self.pairs} pairs"
        lift = f"{100 * self.lift:+.1f} points [{low:+.1f}, {high:+.1f}] on {pairs}"
        decided = f", e-value {self.e_value:.4g} ({self.needed:.4g} decides)"
        return lift + decided if self.level else lift

    @property
    def needed(self) -> float:
        """The e-value that decides the trial; infinite before it began."""
        return 1.0 / self.level if self.level else float("inf")


class Behavior(Frozen):
    """One text for one agent. `id` follows from agent, kind and text, and may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str = ""
    agent: Name
    kind: _Kind = "rule"
    text: Annotated[PlainText, Field(min_length=1)]
    why: PlainText = ""
    """What it should correct, in its author's words."""
    parents: tuple[str, ...] = Field((), max_length=100)
    """Ids of the behaviours that it was made from: a new prompt has their content."""
    status: Status = "candidate"
    born: int = Field(0, ge=0)
    """Number of the update that made it."""
    evidence: Evidence | None = None
    retest: Evidence | None = None
    """Evidence of its last retest after acceptance."""
    note: PlainText = ""
    """The reason for its status, if needed."""

    @model_validator(mode="before")
    @classmethod
    def _identify(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or not isinstance(raw.get("text"), str):
            return raw
        id = behavior_id(str(raw.get("agent")), str(raw.get("kind", "rule")), raw["text"])
        if raw.get("id", id) != id:
            raise ValueError(
                f"id {str(raw['id'])[:20]!r} belongs to another text (this one's is {id}): an "
                "edited behaviour is a new one, so remove its id, evidence and status"
            )
        known = {key: value for key, value in raw.items() if key != "screened"}  # before races
        return {**known, "id": id}

    @property
    def example(self) -> Example | None:
        """What an example of the form that `told` writes says; else None."""
        asked, between, answered = self.text.partition(_ANSWERED)
        if self.kind != "example" or not between or not asked.startswith(_ASKED):
            return None
        asked = asked.removeprefix(_ASKED)
        return Example(asked=asked, answered=answered) if asked and answered else None

    @property
    def source(self) -> Evidence | None:
        """Of its evidence, what it was made from; None if that is not known."""
        if self.evidence is None or not self.evidence.problems:
            return None
        return Evidence(problems=self.evidence.problems)

    @property
    def tested(self) -> int:
        """The update at which it was tested last."""
        return max(e.update if e else 0 for e in (self.evidence, self.retest))


def told(example: Example) -> str:
    """An example as a text."""
    return f"{_ASKED}{example.asked}{_ANSWERED}{example.answered}"


def behavior_id(agent: str, kind: str, text: str) -> str:
    """8 hex digits over a behaviour's agent, kind and text."""
    whole = "\x1f".join((agent, kind, text)).encode("utf-8", "replace")
    return blake2b(whole, digest_size=4).hexdigest()


class Library(Frozen):
    """All behaviours of a run, accepted ones first, else in the order they came."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    version: Literal[1] = 1
    task: Name
    model: Name
    """The model that the evidence is about."""
    update: int = Field(0, ge=0)
    """Updates made so far."""
    behaviors: Annotated[
        tuple[Behavior, ...], Field(max_length=MAX_BEHAVIORS), AfterValidator(lambda b: _ordered(b))
    ] = ()

    def accepted(self, agent: str) -> tuple[Behavior, ...]:
        """The behaviours in the agent's prompt, in order."""
        return tuple(b for b in self.behaviors if b.agent == agent and b.status == "accepted")

    def added(self, agent: str) -> tuple[Behavior, ...]:
        """The accepted rules and examples, which stand below the agent's own prompt."""
        return tuple(b for b in self.accepted(agent) if b.kind != "prompt")

    def system(self, agent: str, base: str) -> str:
        """The agent's system prompt: `base`, or the accepted one in its place; then the learned
        rules, if any. An example that a person wrote in another form stands there too."""
        base = next((b.text for b in self.accepted(agent) if b.kind == "prompt"), base)
        rules = [_bullet(b.text) for b in self.added(agent) if b.kind == "rule"]
        other = [b for b in self.added(agent) if b.kind == "example" and b.example is None]
        examples = [_example(b.text) for b in other]
        head = HEADING if rules or examples else ""
        return "\n\n".join(filter(None, (base, head, "\n".join(rules), *examples)))

    def own(self, agent: str, system: str) -> str | None:
        """The agent's own prompt in one that `system` made, now or earlier in the run; None where a
        learned one stood in its place."""
        base = system.partition(f"\n\n{HEADING}")[0]
        learned = (b.text for b in self.behaviors if b.agent == agent and b.kind == "prompt")
        return None if base in {text.partition(f"\n\n{HEADING}")[0] for text in learned} else base

    def examples(self, agent: str) -> tuple[Example, ...]:
        """The accepted examples, which the agent sees as earlier turns of the chat."""
        return tuple(b.example for b in self.added(agent) if b.example is not None)

    def prompt(self, agent: str, base: str) -> str:
        """All that the agent is told before an observation, as one text for readers."""
        examples = [f"Example\n\n{told(one)}" for one in self.examples(agent)]
        return "\n\n".join(filter(None, (self.system(agent, base), *examples)))

    def find(self, id: str) -> Behavior | None:
        """The behaviour of that id."""
        return next((b for b in self.behaviors if b.id == id), None)

    def put(self, behavior: Behavior) -> Library:
        """A library in which this behaviour replaces the one with its id, or is added at the
        end."""
        if self.find(behavior.id) is None:
            return self._with((*self.behaviors, behavior))
        return self._with(tuple(behavior if b.id == behavior.id else b for b in self.behaviors))

    def near(self, agent: str, text: str, least: float = NEAR) -> Behavior | None:
        """The agent's behaviour whose similarity is `least` or more, the nearest of several.

        Merged ones don't count; a text is compared with the behaviours they were merged into.
        """
        scored = [
            (similarity(b.text, text), -place, b)
            for place, b in enumerate(self.behaviors)
            if b.agent == agent and b.status != "merged"
        ]
        best = max(scored, default=None, key=lambda item: item[:2])
        return best[2] if best and best[0] >= least else None

    def accept(self, behavior: Behavior, max_per_agent: int) -> Library:
        """A library with this behaviour in the prompt. If that has `max_per_agent` rules and
        examples already, the one with the least lift leaves. A new prompt takes the place of the
        former one and of its own parents."""
        notes = dict[str, str]()
        if behavior.kind == "prompt":
            for b in self.accepted(behavior.agent):
                if b.kind == "prompt" or b.id in behavior.parents:
                    notes[b.id] = f"worked into {behavior.id}"
        else:
            others = sorted(
                (b for b in self.added(behavior.agent) if b.id != behavior.id), key=_lift
            )
            for b in others[: max(0, len(others) + 1 - max_per_agent)]:
                notes[b.id] = f"gave way to {behavior.id}"
        library = self.put(behavior.model_copy(update={"status": "accepted"}))
        for b in self.behaviors:
            if b.id in notes and b.id != behavior.id:
                changed = {"status": "retired", "note": notes[b.id]}
                library = library.put(b.model_copy(update=changed))
        return library

    def replaced(self, behavior: Behavior, max_per_agent: int) -> frozenset[str]:
        """The accepted behaviours that leave the prompt when this one is accepted, by id."""
        after = self.accept(behavior, max_per_agent).accepted(behavior.agent)
        before = {b.id for b in self.accepted(behavior.agent)}
        return frozenset(before - {b.id for b in after})

    def adopted(self) -> Library:
        """The start of another run of the same task and model: accepted ones stay accepted.

        Update numbers start again, and an open trial restarts; what it was made from stays known.
        """
        kept = []
        for b in self.behaviors:
            changes: dict[str, Any] = {"born": 0}
            if b.status == "trial":
                changes |= {"status": "candidate", "evidence": b.source}
            elif b.evidence:
                changes["evidence"] = b.evidence.model_copy(update={"update": 0})
            if b.retest:
                changes["retest"] = b.retest.model_copy(update={"update": 0})
            kept.append(b.model_copy(update=changes))
        return Library(task=self.task, model=self.model, behaviors=tuple(kept))

    def of(self, agents: Collection[str]) -> Library:
        """The library restricted to these agents."""
        return self._with(tuple(b for b in self.behaviors if b.agent in agents))

    def without(self, kind: _Kind) -> Library:
        """The library without behaviours of that kind."""
        return self._with(tuple(b for b in self.behaviors if b.kind != kind))

    def transferred(self, task: str, model: str) -> Library:
        """Accepted behaviours as candidates for a run on another task or with another model.

        Their evidence is dropped, because it says nothing about that run; on the same task, the
        problems that they were made from stay known.
        """
        moved = tuple(
            Behavior(
                agent=b.agent,
                kind=b.kind,
                text=b.text,
                why=b.why,
                parents=b.parents,
                evidence=b.source if task == self.task else None,
                note=f"from {self.task} with {self.model}",
            )
            for b in self.behaviors
            if b.status == "accepted"
        )
        return Library(task=task, model=model, behaviors=moved)

    def carried(self, task: str, roles: Mapping[str, str | None]) -> Library:
        """The accepted behaviours in the prompts of another task's team, untested there: `roles`
        has, by role, the agent whose behaviours it gets (None: none). Their evidence is dropped."""
        moved = tuple(
            Behavior(
                agent=role,
                kind=b.kind,
                text=b.text,
                why=b.why,
                status="accepted",
                note=f"accepted for {agent} on {self.task} with {self.model}; not tested here",
            )
            for role, agent in roles.items()
            for b in (self.accepted(agent) if agent else ())
        )
        return Library(task=task, model=self.model, behaviors=moved)

    def _with(self, behaviors: tuple[Behavior, ...]) -> Library:
        return Library(task=self.task, model=self.model, update=self.update, behaviors=behaviors)


def empty_library(task: str, model: str) -> Library:
    """An empty library; raises ConfigError for an invalid name."""
    try:
        return Library(task=task, model=model)
    except ValidationError as error:
        raise ConfigError(
            f"the name of task {task[:40]!a} or model {model[:40]!a} can't be used "
            f"({reason(error)}): give another"
        ) from None


def _ordered(behaviors: tuple[Behavior, ...]) -> tuple[Behavior, ...]:
    if len({b.id for b in behaviors}) < len(behaviors):
        raise ValueError("one behaviour stands there twice: remove one of the two")
    return tuple(sorted(behaviors, key=lambda b: STATUSES.index(b.status)))


def _lift(behavior: Behavior) -> tuple[float, int, str]:
    lift = behavior.evidence.lift if behavior.evidence else float("-inf")
    return lift, behavior.born, behavior.id


def _bullet(text: str) -> str:
    return "- " + text.strip().replace("\n", "\n  ")


def _example(text: str) -> str:
    """Wraps the text in tags that it can't close: its own tags of that name are broken up."""
    inside = re.sub(r"<(?=[\s/]*example\b)", "&lt;", text.strip(), flags=re.IGNORECASE)
    return f"An example of good work, on another problem:\n<example>\n{inside}\n</example>"


def similarity(one: str, other: str) -> float:
    """Jaccard index of two texts' words and word pairs, in [0, 1]; symmetric.

    0 if only one of them has a negation, because a rule and its opposite differ by one word.
    """
    words, others = _words(one), _words(other)
    if _negated(words) != _negated(others):
        return 0.0
    shingles, more = _shingles(words), _shingles(others)
    union = len(shingles | more)
    return len(shingles & more) / union if union else 1.0


def _words(text: str) -> list[str]:
    text = text.casefold().replace("\u2019", "'").replace("'s ", " ")
    return re.findall(r"[\w']+", text.replace("n't", " not"))


def _negated(words: list[str]) -> bool:
    return not _NEGATIONS.isdisjoint(words)


def _shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {(word,) for word in words} | set(pairwise(words))


def prompt_diff(before: Library, after: Library, prompts: Mapping[str, str]) -> str:
    """A unified diff of two libraries' system prompts; '' for no change.

    `prompts` has each agent's own prompt, by role.
    """
    lines = list[str]()
    for agent, base in prompts.items():
        old, new = (library.prompt(agent, base).splitlines() for library in (before, after))
        lines += difflib.unified_diff(
            old, new, f"{agent} (before)", f"{agent} (after)", lineterm=""
        )
    return "".join(f"{line}\n" for line in lines)


# --- the file -----------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as readable blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A block that ends in empty lines would also end the document.
    style = "|" if "\n" in text.strip() and not text.endswith("\n\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)


def to_yaml(library: Library) -> str:
    """A readable file for `read_library`, accepted behaviours first."""
    head = "# What the team learned; `orchestry behaviors show ID` shows one, and\n"
    head += "# `orchestry run --set behaviors.from=THIS_FILE` starts a run from it.\n"
    plain = library.model_dump(mode="json", exclude={"behaviors"})
    if not library.behaviors:
        return head + _dump({**plain, "behaviors": []})
    items = [
        f"\n# {b.status}: {b.evidence or 'not tried yet'}\n"
        + _dump([b.model_dump(mode="json", exclude_defaults=True)])
        for b in library.behaviors
    ]
    return head + _dump(plain) + "behaviors:\n" + "".join(items)


def _dump(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96)


def shipped() -> list[Path]:
    """The libraries that come with the package, by name."""
    return sorted(bundled("behaviors").glob("*.yaml"))


def file_of(place: Path) -> Path:
    """The library's file. `place` may also be a run directory, or the name of a bundled library."""
    if place.is_dir():
        return place / IN_RUN
    named = [path for path in shipped() if path.stem == str(place)]
    return named[0] if named and not place.exists() else place


def read_library(path: Path) -> Library:
    """The library in a file, or of a run directory.

    Raises ConfigError naming the file and its fault.
    """
    fix = "correct the file"
    try:
        path = file_of(path)
        if not (raw := read_yaml(path, MAX_FILE)):
            raise ValueError("it holds no keys and values")
        return Library.model_validate(raw)
    except ValidationError as error:
        why = reason(error)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise too_long(error) from None
        why = error.strerror or str(error)
        names = ", ".join(one.stem for one in shipped())
        fix = (
            f"give a library's YAML file, such as RUN/{IN_RUN.as_posix()}, a run that learned, or "
            f"one that ships ({names})"
        )
    except ValueError as error:
        why = " ".join(str(error).split())[:300]
    raise ConfigError(f"{path} is not a library of behaviours: {why}: {fix}")
