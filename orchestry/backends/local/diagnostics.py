"""What an update's answers were like: figures that cost no forward pass of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestry.backends.local.magrpo import k3
from orchestry.core.types import Completion, Tree

if TYPE_CHECKING:
    from torch import Tensor

    from orchestry.backends.local.optimizer import Step

Figures = dict[str, float]


def drawn(trees: Sequence[Tree[Any]]) -> dict[str, Any]:
    """Figures of all answers of finished episodes: of the team, and `by_agent`.

    `entropy`: nats per token, estimated as the mean of minus the drawn tokens' log-probabilities.
    These are of the whole distribution, so with top_p or top_k, which draw only likely tokens, the
    estimate is below its entropy. `length`: mean tokens per answer. `truncated`: share of answers
    that reached the most tokens allowed. `flat`: share of episodes whose trajectories all earned
    the same (of those with several), from which nothing is learned.
    """
    agents = defaultdict[str, list[Completion]](list)
    for agent, answer in _answers(trees):
        agents[agent].append(answer)
    together = [answer for mine in agents.values() for answer in mine]
    return {
        **_figures(together),
        **_flat(trees),
        "by_agent": {agent: _figures(mine) for agent, mine in sorted(agents.items())},
    }


def _answers(trees: Iterable[Tree[Any]]) -> Iterator[tuple[str, Completion]]:
    """Each drawn answer once; under `cross` several states hold the same turn."""
    for tree in trees:
        seen = set[int]()
        for group in tree.groups:
            for node in tree.siblings(group):
                for turn in node.trajectory.turns[-len(group.agents) :]:
                    if id(turn) not in seen:
                        seen.add(id(turn))
                        drawn = (one for one in turn.completion.answers if one.tokens is not None)
                        yield from ((turn.agent, one) for one in drawn)


def _figures(answers: Sequence[Completion]) -> Figures:
    logprobs = [x for each in answers if each.tokens for x in each.tokens.logprobs]
    if not logprobs:
        return {}
    cut = sum(answer.stop == "length" for answer in answers)
    return {
        "entropy": -sum(logprobs) / len(logprobs),
        "length": len(logprobs) / len(answers),
        "truncated": cut / len(answers),
    }


def _flat(trees: Sequence[Tree[Any]]) -> Figures:
    earned = [[_earned(node) for node in tree.leaves] for tree in trees]
    compared = [row for row in earned if len(row) > 1]
    return (
        {"flat": sum(min(row) == max(row) for row in compared) / len(compared)} if compared else {}
    )


def _earned(leaf: Any) -> float:
    """As in the returns: the judged value if there is one."""
    if leaf.judged is not None:
        return float(leaf.judged.number)
    return float(leaf.trajectory.score.total)


class Tally:
    """Sums over the tokens of one pass, by figure and agent."""

    def __init__(self, sums: Mapping[tuple[str, str], tuple[float, int]] | None = None) -> None:
        self.sums = dict(sums or {})

    def add(self, figure: str, agent: str, total: float, tokens: int) -> None:
        """Adds a micro-batch's sum over its tokens."""
        before, count = self.sums.get((figure, agent), (0.0, 0))
        self.sums[figure, agent] = before + total, count + tokens

    def join(self, other: Tally) -> None:
        """Adds another process's sums."""
        for (figure, agent), (total, tokens) in other.sums.items():
            self.add(figure, agent, total, tokens)

    def of(self, figure: str) -> dict[tuple[str, str], tuple[float, int]]:
        """The sums of one figure."""
        return {key: pair for key, pair in self.sums.items() if key[0] == figure}

    def means(self) -> dict[str, Figures]:
        """Means per token: of the team under '', and by agent."""
        found = defaultdict[str, Figures](dict)
        for figure in {figure for figure, _ in self.sums}:
            rows = {agent: pair for (name, agent), pair in self.sums.items() if name == figure}
            rows[""] = sum(total for total, _ in rows.values()), sum(n for _, n in rows.values())
            for agent, (total, tokens) in rows.items():
                found[agent][figure] = total / max(1, tokens)
        return dict(found)


def tally_of(
    role: str,
    found: Sequence[Tensor],
    before: Sequence[Tensor] | None,
    reference: Sequence[Tensor] | None,
    clip: float | None,
) -> Tally:
    """`kl` and `clipped` of a micro-batch, from the log-probabilities of its answers by the policy,
    by the one `before` the update, and by the base; each (T,) per answer, without gradient."""
    import torch

    tally, new = Tally(), torch.cat(list(found))
    if reference is not None:
        tally.add("kl", role, k3(new, torch.cat(list(reference))).sum().item(), len(new))
    if before is not None and clip is not None:
        outside = (new - torch.cat(list(before))).expm1().abs() > clip
        tally.add("clipped", role, outside.sum().item(), len(new))
    return tally


@dataclass(frozen=True, slots=True)
class Learnt:
    """The result of one update."""

    step: Step
    loss: float
    """The loss of all agents together; its size says little, only its gradient matters."""
    samples: int
    """Actions learned from."""
    skipped: int
    """Actions with zero advantage, which are skipped."""
    tokens: int
    """Answers' tokens learned from."""
    means: Mapping[str, Figures] = field(default_factory=dict)
    """Per token of these, of the team under '' and by agent: `kl`, the KL to the base before the
    update (k3 estimate, only with learn.kl), and `clipped`, the share of ratios outside learn.clip
    in the last step (only with it)."""

    def figures(self) -> dict[str, Any]:
        """The part for the journal."""
        return {
            "loss": self.loss,
            "rate": self.step.rate,
            "norms": dict(self.step.norms),
            "samples": self.samples,
            "skipped": self.skipped,
            "tokens": self.tokens,
            **self.means.get("", {}),
        }

    def beside(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """The part for the journal, with the figures of all `drawn` answers; see
        `drawn`."""
        agents = {
            agent: {**figures, **self.means.get(agent, {})}
            for agent, figures in drawn["by_agent"].items()
        }
        return {**self.figures(), **drawn, "by_agent": agents}

    def line(self) -> str:
        """The line for the user."""
        norms = ", ".join(f"{agent} {norm:.2g}" for agent, norm in self.step.norms.items())
        return (
            f"{self.samples} actions used, {self.skipped} skipped (equal rewards), "
            f"gradient norms {norms}"
        )
