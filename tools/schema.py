"""configs/schema.json: the JSON Schema of a run's config, for editors.

    python -m tools.schema --write

Each key has the docstring under its field. A file may say some things more briefly than the model
that holds them: those forms are added here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from orchestry.core.choices import ProviderName
from orchestry.core.config import RunConfig
from orchestry.core.ppo import count
from orchestry.core.types import Frozen
from tools import put
from tools.keys import explanations

PAGE = Path(__file__).resolve().parent.parent / "configs" / "schema.json"
COMMAND = "python -m tools.schema --write"
TEXT = {"type": "string"}
AUTO = {"const": "auto"}
TEAM = {"type": "string", "pattern": "^local:."}
COUNT = {"type": "string", "pattern": "^[0-9][0-9.,_]*(e[0-9]+)?[kKmM]?$"}
"""Steps such as 500k and 10M."""
BRIEF: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("RunConfig", "agents"): {
        "type": "array",
        "items": {"$ref": "#/$defs/AgentConfig", "required": ["role"]},
    },
    ("AgentConfig", "provider"): {"anyOf": [{"enum": [*get_args(ProviderName)]}, TEAM]},
    ("AgentConfig", "plays"): {"type": ["string", "null"]},
    ("ProviderConfig", "name"): TEAM,
    ("BehaviorsConfig", "share"): AUTO,
    ("LearnConfig", "group_size"): AUTO,
    ("LearnConfig", "targets"): TEXT,
    ("LearnConfig", "vllm_url"): TEXT,
    ("RecipeConfig", "steps"): TEXT,
    ("TrackersConfig", "wandb"): {"const": False},
}
"""By model and key: what a file may give besides."""


def page() -> str:
    """The whole file."""
    schema = RunConfig.model_json_schema()
    models = {model.__name__: model for model in Frozen.__subclasses__()}
    _explained(schema, RunConfig)
    for name, part in schema["$defs"].items():
        _explained(part, models[name])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": COMMAND}
    return json.dumps({**head, **schema, "title": "Orchestry: a run's config"}, indent=1) + "\n"


def _explained(schema: dict[str, Any], model: type[Frozen]) -> None:
    """Adds sentences and brief forms to the keys of a model's schema, and takes titles away."""
    said = explanations(model)
    for field, info in model.model_fields.items():
        key = info.alias or field
        found = schema["properties"][key]
        found.pop("title", None)
        counted = any(getattr(item, "func", None) is count for item in info.metadata)
        if brief := COUNT if counted else BRIEF.get((model.__name__, key)):
            default = {"default": found.pop("default")} if "default" in found else {}
            found = {"anyOf": [brief, found], **default}
        if said[field]:
            found["description"] = re.sub(r"\bNone\b", "null", said[field])
        schema["properties"][key] = found


if __name__ == "__main__":
    put(page(), PAGE)
