"""How the recipes of benchmarks.quality.joint share one budget of drawn trajectories."""

from __future__ import annotations

from dataclasses import dataclass

from orchestry.core.recipes import Step

GROUP = 4
"""Trajectories per episode of every stage."""
TRIALS = 1
"""A stage `prompts` spends as many calls on trials of behaviours as on its episodes."""
UNIT = 12
"""Budgets are multiples of so many episodes, so that 1 to 3 stages share them evenly."""
MOST_SAMPLES = 64
"""Trajectories per problem that backend local takes."""
_MOST = {"prompts": 8, "magrpo": 4}
"""Most episodes per update, by step."""

LETTERS: dict[str, tuple[Step, ...]] = {"p": ("prompts",), "w": ("magrpo",)}
RECIPES = ("p", "w", "p+w", "w+p", "p+w+p")
EXPERT, MATCHED = "expert", "w-cpu"
"""Expert iteration, and MAGRPO at its CPU time."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a stage plays."""

    step: Step
    episodes: int
    """0: a distillation, which draws nothing."""

    @property
    def every(self) -> int:
        """Episodes per update: the most that share the stage's episodes evenly, so that none is
        left without an update."""
        most = _MOST.get(self.step, 1)
        return max(size for size in range(1, most + 1) if self.episodes % size == 0)

    @property
    def trajectories(self) -> int:
        """Drawn by the stage, at most: trials of behaviours included."""
        return GROUP * self.episodes * (1 + TRIALS * (self.step == "prompts"))


def steps_of(recipe: str, rounds: int) -> tuple[Step, ...]:
    """The recipe's stages, in order."""
    if recipe == EXPERT:
        return ("search", "distil") * rounds
    if recipe == MATCHED:
        return ("magrpo",)
    return tuple(step for letter in recipe.split("+") for step in LETTERS[letter])


def shares(recipe: str, episodes: int, rounds: int) -> list[Share]:
    """A budget of `episodes` episodes without trials, divided evenly among the stages that draw.

    Raises ValueError if it can't be divided.
    """
    steps = steps_of(recipe, rounds)
    drawing = sum(step != "distil" for step in steps)
    parts = {"distil": drawing * episodes + 1, "prompts": drawing * (1 + TRIALS)}
    found = [Share(step, episodes // parts.get(step, drawing)) for step in steps]
    if sum(one.trajectories for one in found) != GROUP * episodes or episodes < 1:
        raise ValueError(
            f"{episodes} episodes can't be shared evenly among the stages of {recipe}: give "
            f"--episodes a multiple of {UNIT}, and --rounds a divisor of it"
        )
    return found


def best_of(episodes: int, problems: int) -> int:
    """The trajectories per test problem of a team that spends on them what a recipe spends on its
    training, besides the one that every team plays."""
    return min(MOST_SAMPLES, 1 + GROUP * episodes // problems)


def matched(episodes: int, ours_s: float, theirs_s: float) -> int:
    """The episodes that take `theirs_s` seconds, if `episodes` take `ours_s`: a multiple of 4."""
    return max(1, round(episodes * theirs_s / ours_s / 4)) * 4
