"""What several commands take: the flags of a run, and how they become a RunConfig."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from orchestry.core.config import BACKENDS, PROVIDERS, RunConfig, put, resolve, settings_of
from orchestry.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from orchestry.engine.trust import Trust

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class RunPath(click.Path):
    """A run's directory; `last` is the one in ./runs that was written last."""

    name = "run"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) != "last" or Path("last").exists():
            return super().convert(value, param, ctx)
        journals = Path("runs").glob("*/journal.jsonl")
        runs = [path for path in journals if path.with_name("config.yaml").is_file()]
        if not runs:
            self.fail("there is no run in ./runs yet: give a run's directory", param, ctx)
        return max(runs, key=lambda path: (path.stat().st_mtime_ns, path)).parent


RUN = RunPath()
task_path_option = click.option(
    "--task-path",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="Folder of tasks, searched before ./tasks; may be repeated.",
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Use the code, servers, caps and prices that a config of others names.",
)


def trusting(flag: bool) -> Trust:
    """What --trust says; without it a person at a terminal is asked."""
    if flag or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return flag
    return lambda question: click.confirm(question, err=True)


def which_update(text: str) -> int | Literal["best"]:
    """An option's type: a number, or the one that earned most on dev."""
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise click.BadParameter(f"'{text}' is no update: give its number, or best")
    return int(text)


FLAGS = {
    "backend": "backend",
    "task": "task",
    "episodes": "episodes",
    "provider": "provider.name",
    "model": "provider.model",
    "beam_width": "search.beam_width",
    "k_samples": "search.k_samples",
    "budget": "budget.usd",
    "patience": "retry.patience_s",
    "seed": "seed",
    "allow_unsafe_code": "allow_unsafe_code",
}
"""Flag to config key."""

patience = click.option(
    "--patience",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="How long to wait for a server that is away; then the run stops, resumable (exit code 4). "
    " [600, or as the run has it]",
)

_OPTIONS = (
    click.option("--backend", type=click.Choice(BACKENDS), help="How the team learns.  [api]"),
    click.option(
        "--task", metavar="NAME", help="`orchestry tasks list` shows them.  [code_review]"
    ),
    click.option("--episodes", type=int, metavar="N", help="Problems to play.  [20]"),
    click.option(
        "--provider",
        type=click.Choice(PROVIDERS),
        help="Who answers. auto: Claude with ANTHROPIC_API_KEY, else the embedded model.  [auto]",
    ),
    click.option("--model", metavar="M", help="Model of that provider."),
    click.option("--beam-width", type=int, metavar="W", help="States kept after a stage.  [2]"),
    click.option("--k-samples", type=int, metavar="K", help="Samples an agent and state.  [4]"),
    click.option("--budget", type=float, metavar="USD", help="Hard cap in dollars.  [5]"),
    patience,
    click.option("--seed", type=int, metavar="S", help="Same seed, same run.  [0]"),
    task_path_option,
    click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE|PRESET",
        help="YAML over the defaults, or a preset: laptop, quick_test, local_cpu, local_writing.",
    ),
    click.option(
        "--set",
        "sets",
        metavar="A.B=C",
        multiple=True,
        help="Any config key, such as search.concurrency=64; may be repeated.",
    ),
    click.option(
        "--allow-unsafe-code",
        is_flag=True,
        default=None,
        help="Where this machine can't confine the code that models write, run it all the same.",
    ),
    trust_option,
)


def run_options(command: CommandT) -> CommandT:
    """Adds every flag that changes a RunConfig."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def config_from(
    file: Path | None,
    sets: tuple[str, ...],
    task_path: tuple[Path, ...],
    trust: bool = False,
    **flags: Any,
) -> RunConfig:
    """Defaults < configs/<backend>.yaml < --config < --set < flags; raises ConfigError, also
    where FILE names code or servers of others that are not confirmed."""
    given = {FLAGS[name]: value for name, value in flags.items() if value is not None}
    if task_path:
        given["task_path"] = [str(path) for path in task_path]
    chosen = [_preset(file)] if file else []
    backend = resolve(chosen, sets, given).backend
    config = resolve([*_backend_file(backend), *chosen], sets, given)
    if file and chosen == [file] and not file.resolve().is_relative_to(Path("configs").resolve()):
        from orchestry.engine.trust import check

        check(config, file, trusting(trust), typed(sets, given))
    return config


def typed(sets: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the command line itself gives, nested like the config."""
    found = settings_of(sets)
    for key, value in given.items():
        put(found, key, value)
    return found


def _backend_file(backend: str) -> list[Path]:
    """The user's configs/<backend>.yaml in the working folder, else the one that ships."""
    return _shipped(backend)[:1]


def _preset(file: Path) -> Path:
    """A bare name that is no file is one of configs/, as `_backend_file` finds those.

    Raises ConfigError for a name that is neither.
    """
    if len(file.parts) != 1 or file.exists():
        return file
    if found := _shipped(file.name):
        return found[0]
    known = sorted({path.stem for place in _configs() for path in place.glob("*.yaml")})
    raise ConfigError(unknown("config file or preset", file.name, known))


def _shipped(name: str) -> list[Path]:
    return [path for place in _configs() if (path := place / f"{name}.yaml").is_file()]


def _configs() -> tuple[Path, Path]:
    from orchestry.task.registry import bundled

    return Path("configs"), bundled("configs")
