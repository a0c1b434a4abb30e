"""RecipeConfig: several stages, one after the other, on one team."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from orchestry.core.types import Frozen, Split

Step = Literal["search", "prompts", "distil", "magrpo"]
STEPS: tuple[Step, ...] = get_args(Step)


def _split(raw: Any) -> Any:
    return tuple(part.strip() for part in raw.split("+")) if isinstance(raw, str) and raw else raw


class RecipeConfig(Frozen):
    """Stages that play and teach one team in turn (`--recipe search+distil+magrpo`). See
    docs/recipes.md."""

    steps: Annotated[tuple[Step, ...], BeforeValidator(_split)] = Field((), max_length=50)
    """`search`: play, and keep the trajectories; `prompts`: learn behaviours; `distil`: fine-tune
    the weights on the best trajectories since the last `distil`; `magrpo`: learn by gradients."""
    stages: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """By step, or by the number of a stage: config keys of these stages alone. `distil` also takes
    the options of `orchestry distil`."""
    split: Split = "dev"
    """Problems on which the team is measured before and after each stage that changes it."""
    samples: int = Field(4, ge=0, le=1000)
    """Trajectories per problem in these measurements. 0: nothing is measured."""
    problems: int | None = Field(None, ge=1)
    """Only so many problems of the split. None: all."""

    @model_validator(mode="after")
    def _names_its_stages(self) -> RecipeConfig:
        known = {*STEPS, *(str(number + 1) for number in range(len(self.steps)))}
        if strange := sorted(self.stages.keys() - known):
            raise ValueError(
                f"recipe.stages has '{strange[0]}': name a step ({', '.join(STEPS)}), or the "
                "number of a stage"
            )
        return self
