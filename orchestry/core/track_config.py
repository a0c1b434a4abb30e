"""Where a run is shown besides its own folder: the section `trackers` of its config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from orchestry.core.types import Frozen


def _off(value: Any) -> Any:
    """YAML reads the bare word off as false."""
    return "off" if value is False else value


class TrackersConfig(Frozen):
    """Mirrors of the run's figures, which stand in its folder too. Evaluations have none."""

    tensorboard: bool = False
    """Event files in the run's folder `tensorboard`, for `tensorboard --logdir runs`."""
    wandb: Annotated[Literal["off", "online", "offline"], BeforeValidator(_off)] = "off"
    """Weights & Biases. `offline` writes into the run's folder `wandb`, for `wandb sync`; `online`
    takes the login of this machine (`wandb login`, or WANDB_API_KEY)."""
    project: str = "orchestry"
    """W&B: the project."""
    entity: str | None = None
    """W&B: the user or team. None: the account's own."""
    name: str | None = None
    """W&B: the run's name. None: that of its folder."""
    tags: tuple[str, ...] = ()
    """W&B: labels of the run."""
