"""Example trajectories as Markdown: what each agent wrote, and what it was worth."""

from __future__ import annotations

from orchestry.report.examples import Example, examples
from orchestry.report.experiment import Experiment
from orchestry.report.markdown import fenced, inline, table


def trajectories(experiment: Experiment) -> str:
    """The best, the median and the worst trajectory of a run."""
    found = examples(experiment.run)
    if not found:
        return f"{inline(experiment.label)}: no episode is finished."
    return "\n\n".join(_trajectory(one, experiment.label) for one in found)


def _trajectory(one: Example, label: str) -> str:
    parts = ", ".join(f"{inline(part.name)} {part.value:.3f}" for part in one.leaf.score.parts)
    tags = ", ".join(map(inline, one.leaf.score.tags)) or "none"
    pieces = [
        f"### {inline(label)}: the {one.place}, reward {one.reward:.3f}",
        f"Episode {one.record.episode}, problem {inline(one.record.problem)}, trajectory "
        f"{inline(one.leaf.id)}. Parts: {parts or 'none'}. Tags: {tags}.",
    ]
    for turn in one.turns:
        said = turn.completion.text
        end = (
            "" if turn.completion.stop == "end" else f" (ended by: {inline(turn.completion.stop)})"
        )
        answer = fenced(said) if said.strip() else "*an empty answer*"
        pieces.append(f"**{inline(turn.agent)}**{end}\n\n{answer}")
    if one.leaf.score.feedback:
        pieces.append(f"Feedback of the task: {inline(one.leaf.score.feedback, longest=600)}")
    return "\n\n".join([*pieces, _credits(one)])


def _credits(one: Example) -> str:
    if not one.credits:
        return "No credit was measured on this trajectory."
    rows = [
        [inline(credit.agent), f"{credit.credit:+.3f}", f"[{credit.low:+.3f}, {credit.high:+.3f}]"]
        for credit in one.credits
    ]
    return table(["agent", "credit, in units of the reward", "95 %"], rows)
