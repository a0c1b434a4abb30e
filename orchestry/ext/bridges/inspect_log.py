"""A run as an eval log of inspect_ai, which `inspect view` shows (written for inspect_ai 0.3).

A sample is one trajectory to its end; its epoch is its place among those of its problem. Its
messages are what each agent saw and said, in order, with the agent's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, reason
from orchestry.core.types import Message, Turn
from orchestry.store.journal import Opened
from orchestry.store.records import EpisodeRecord, NodeRecord
from orchestry.store.run import Run, load_run

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage

STATUS = {"done": "success", "interrupted": "cancelled"}
"""Of a run by how it ended; else `error`."""


def to_inspect(run: Run | str | Path, file: Path | None = None) -> Path:
    """Writes the log (default: RUN/export/inspect.eval), and says where.

    Raises ConfigError if inspect_ai is missing, or if the run has no finished episode.
    """
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise ConfigError(
            f"an eval log is written by inspect_ai, which can't be imported here "
            f"({reason(error)}): {install('inspect')}"
        ) from None
    source = run if isinstance(run, Run) else load_run(Path(run))
    if not source.episodes:
        raise ConfigError(f"{source.folder} has no finished episode, so there is nothing to show")
    place = file or source.folder / "export" / "inspect.eval"
    place.parent.mkdir(parents=True, exist_ok=True)
    write_eval_log(eval_log(source), str(place))
    return place


def eval_log(run: Run) -> EvalLog:
    """The log as inspect_ai's own type."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats

    samples = [one for episode in run.episodes for one in _samples(run, episode)]
    begun = next(event.at for event in run.events if isinstance(event, Opened))
    ended = max(getattr(event, "at", begun) for event in run.events)
    created, completed = (datetime.fromtimestamp(at, UTC).isoformat() for at in (begun, ended))
    config = run.config
    problems = list(dict.fromkeys(episode.problem for episode in run.episodes))
    provider: Mapping[str, Any] = config["provider"]
    told: Any = STATUS.get(run.summary.stopped, "error")
    return EvalLog(
        status=told,
        eval=EvalSpec(
            created=created,
            task=str(config["task"]),
            dataset=EvalDataset(name=str(config["split"]), samples=len(problems)),
            model=f"{provider['name']}/{provider['model']}",
            config=EvalConfig(epochs=max(one.epoch for one in samples)),
            metadata={"backend": config["backend"], "run": run.folder.name},
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[_mean(name, samples) for name in _names(samples)],
        ),
        stats=EvalStats(started_at=created, completed_at=completed),
        samples=samples,
    )


def _samples(run: Run, episode: EpisodeRecord) -> Iterator[EvalSample]:
    """One per leaf."""
    from inspect_ai.log import EvalSample

    credits = {c.agent: c.credit for c in episode.credits if c.leaf == episode.best}
    for epoch, leaf in enumerate(episode.leaves(), start=1):
        turns = [turn for node in episode.path(leaf.id) for turn in node.turns]
        best = leaf.id == episode.best
        yield EvalSample(
            id=f"{episode.episode}-{episode.problem}",
            epoch=epoch,
            input=turns[0].messages[-1].content if turns else "",
            target="",
            messages=[message for turn in turns for message in _shown(turn)],
            scores=_scores(leaf),
            role_usage=_usage(turns),
            metadata={
                "node": leaf.id,
                "tags": list(leaf.score.tags),
                **({"best": True, "credit": credits} if best else {}),
            },
        )


def _scores(leaf: NodeRecord) -> dict[str, Any]:
    """The reward, and each of its parts."""
    from inspect_ai.scorer import Score

    parts = {part.name: Score(value=part.value) for part in leaf.score.parts}
    whole = Score(value=leaf.score.total, explanation=leaf.score.feedback or None)
    return {"reward": whole, **parts}


def _shown(turn: Turn) -> Iterator[ChatMessage]:
    """What the agent saw, then all that it said, with its calls and their results."""
    for message in turn.messages:
        yield _message(message, turn.agent)
    for step in turn.completion.steps:
        for message in step.messages:
            yield _message(message, turn.agent)
    last = turn.completion
    yield _message(Message(role="assistant", content=last.text, calls=last.calls), turn.agent)


def _message(message: Message, agent: str) -> ChatMessage:
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )
    from inspect_ai.tool import ToolCall

    own = {"agent": agent}
    if message.role == "system":
        return ChatMessageSystem(content=message.content, metadata=own)
    if message.role == "user":
        return ChatMessageUser(content=message.content, metadata=own)
    if message.role == "tool":
        return ChatMessageTool(content=message.content, tool_call_id=message.call, metadata=own)
    calls = [ToolCall(id=c.id, function=c.name, arguments=c.given) for c in message.calls]
    return ChatMessageAssistant(
        content=message.content, tool_calls=calls or None, model=agent, metadata=own
    )


def _usage(turns: list[Turn]) -> dict[str, Any]:
    """Tokens by agent."""
    from inspect_ai.model import ModelUsage

    given, drawn = Counter[str](), Counter[str]()
    for turn in turns:
        given[turn.agent] += turn.completion.input_tokens
        drawn[turn.agent] += turn.completion.output_tokens
    return {
        agent: ModelUsage(
            input_tokens=given[agent],
            output_tokens=drawn[agent],
            total_tokens=given[agent] + drawn[agent],
        )
        for agent in given
    }


def _names(samples: list[EvalSample]) -> list[str]:
    return list(dict.fromkeys(name for one in samples for name in one.scores or {}))


def _mean(name: str, samples: list[EvalSample]) -> Any:
    """Of a score, for the log's head."""
    from inspect_ai.log import EvalMetric, EvalScore

    values = [float(str(one.scores[name].value)) for one in samples if one.scores]
    metric = EvalMetric(name="mean", value=fmean(values))
    return EvalScore(name=name, scorer=name, metrics={"mean": metric})
