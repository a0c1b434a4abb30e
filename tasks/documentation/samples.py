"""Documents of different worth for problems that have a gold one."""

from __future__ import annotations

from orchestry import Problem


def of(problem: Problem) -> list[str]:
    """The gold; without its examples; its first half; the module itself; nothing."""
    if "gold" not in problem.data:
        return []
    gold: str = problem.data["gold"]
    plain = "\n\n".join(part for part in gold.split("\n\n") if not part.startswith(">>>"))
    parts = gold.split("### ")[1:]
    half = "".join(f"### {part}" for part in parts[: len(parts) // 2])
    return [gold, plain, half, f"```python\n{problem.prompt}```", ""]
