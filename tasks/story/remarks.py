"""What was measured of a story: tags, and prose."""

from __future__ import annotations

from collections.abc import Mapping

from orchestry import prose

from .craft import polish
from .reward import Work, changed


def tags(work: Work, found: Mapping[str, float]) -> list[str]:
    """What is counted over a run's leaves; of texts that are yet to come, nothing."""
    pairs = [*zip(work.drafts, work.edits, strict=False)]
    written = [work.passage(raw) for raw in (*work.drafts, *work.edits)]
    told = [work.told] if work.telling else []
    holds = {
        "whole": all(value > 1.0 - 1e-9 for value in found.values()),
        "unedited": any(draft and changed(draft, edited) < 0.5 for draft, edited in pairs),
        "plot_lost": any(work.plot.content(text.raw) < 0.5 for text in told),
        **prose.faults(*written, *told),
    }
    return [tag for tag, held in holds.items() if held]


def remarks(work: Work) -> str:
    """What each text misses, and what was measured of it, in prose."""
    lines = [_seen(work, f"draft {i}", draft) for i, draft in enumerate(work.drafts, start=1)]
    for i, (draft, edited) in enumerate(zip(work.drafts, work.edits, strict=False), start=1):
        lines.append(_seen(work, f"edited {i}", edited))
        new, smooth = changed(draft, edited), polish(edited)
        lines.append(f"It is new to {new:.2f} and polished to {smooth:.2f}.")
    if work.telling:
        lines.append(prose.remark("told", work.told, "story") + _missed(work, work.telling))
    return " ".join(lines)


def _seen(work: Work, name: str, raw: str) -> str:
    return prose.remark(name, work.passage(raw), "premise") + _missed(work, raw)


def _missed(work: Work, raw: str) -> str:
    """The elements that no sentence uses, and the beats that are not told in their place."""
    plot = work.plot
    untold = [beat for beat, told in zip(plot.beats, plot.told(raw), strict=True) if told < 1.0]
    lists = (("Unused", plot.unused(raw)), ("Not told in its place", untold))
    return "".join(f" {name}: {'; '.join(found)}." for name, found in lists if found)
