"""The config of a check on disk, so that one directory never mixes two judges.

It is called check.yaml: a directory with a config.yaml is a run, which `orchestry resume` would
play on.
"""

from __future__ import annotations

from orchestry.core.config import RunConfig, read_yaml
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import Mark, leaves, marks
from orchestry.store.run import Store

NAME = "check.yaml"


def keep_config(store: Store, config: RunConfig) -> None:
    """Writes the config of a new check, or compares it with the one that is gone on with.

    Raises ConfigError for a directory of something else, and for one of another check.
    """
    path = store.folder / NAME
    if not path.exists() and store.events:
        raise ConfigError(f"{store.folder} holds a run, no judge check: choose another --run-dir")
    if path.exists():
        plain = config.model_dump(mode="json", by_alias=True)
        before, now = dict(leaves(read_yaml(path))), dict(leaves(plain))
        for key in sorted(before.keys() | now.keys()):
            if not _free(key) and before.get(key) != now.get(key):
                raise ConfigError(
                    f"{store.folder} holds a check with {key}={before.get(key)}, not "
                    f"{now.get(key)}: give the settings of then, or choose another --run-dir"
                )
    store.write(NAME, config.to_yaml())


def _free(key: str) -> bool:
    """What may change when a check goes on, since it decides no question: what a resume takes,
    and how a run would search."""
    return key.startswith("search.") or Mark.RESUMABLE in marks(RunConfig, key)
