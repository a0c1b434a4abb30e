"""The options that several commands share, and how flags become a RunConfig.

Pydantic is loaded only when a command runs, so that `orchestry run --help` answers at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_type_hints,
)

import typer

from orchestry.core.choices import PROVIDERS, BackendName
from orchestry.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    from orchestry.core.config import RunConfig
    from orchestry.engine.trust import Trust

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])
RUN, EVALUATION, MODEL, SEARCH, BUDGET = "Run", "Evaluation", "Model", "Search", "Budget"
SAFETY, OUTPUT, LEARNING = "Safety", "Output", "Learning"
LESSONS = "Which answers"
"""Panels of the help."""


def option(panel: str, help: str, *names: str, **rest: Any) -> Any:
    """An option in a help panel; without a name it uses the parameter's."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **rest)


def flag(panel: str, help: str, name: str) -> Any:
    """An option without a value."""
    return option(panel, help, name, metavar="")


# --- what a shell completes -----------------------------------------------------------------------


def run_folders(incomplete: str) -> Iterator[str]:
    """Runs in ./runs, the newest first, and `last`."""
    yield from ("last", *map(str, reversed(_runs())))


def task_names(ctx: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Tasks that can be run from here."""
    from orchestry.task.registry import find_tasks

    for task in find_tasks(ctx.params.get("task_path") or (), Path.cwd()).values():
        yield task.name, task.description


def presets(incomplete: str) -> Iterator[str]:
    """The names that --config takes."""
    yield from sorted({path.stem for place in _configs() for path in place.glob("*.yaml")})


def _runs() -> list[Path]:
    """The runs and recipes in ./runs, the one written last at the end."""
    found = dict[Path, int]()
    for config in Path("runs").glob("*/config.yaml"):
        own, stages = (config.parent.glob(f"{at}journal.jsonl") for at in ("", "stages/*/"))
        if written := [path.stat().st_mtime_ns for path in (*own, *stages)]:
            found[config.parent] = max(written)
    return sorted(found, key=lambda folder: (found[folder], folder))


# --- arguments and options ------------------------------------------------------------------------


def run_folder(text: str) -> Path:
    """A run's directory; `last` is the run in ./runs that was written last."""
    if text != "last" or Path(text).exists():
        return Path(text)
    if not (runs := _runs()):
        raise typer.BadParameter("there is no run in ./runs yet: give a run's directory")
    return runs[-1]


def which_update(text: str | None) -> int | Literal["best"] | None:
    """The value of --update: a number, or the best on dev."""
    if text is None:
        return None
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise typer.BadParameter(
            f"'{text}' is not an update: give its number, or best", param_hint="'--update'"
        )
    return int(text)


def run_argument(metavar: str, help: str = "A run's directory, or `last`.") -> Any:
    """An argument that is a run's directory."""
    return typer.Argument(metavar=metavar, help=help, parser=run_folder, autocompletion=run_folders)


RunFolder = Annotated[Path, run_argument("RUN")]
NewTaskIn = Annotated[
    Path,
    option(
        OUTPUT,
        "The folder that gets the task's folder.",
        "--dir",
        file_okay=False,
        metavar="DIR",
    ),
]
Hiding = Annotated[
    bool,
    flag(
        OUTPUT,
        "Even if it hides another task of that name; `attach` also replaces one that it wrote.",
        "--force",
    ),
]
TaskPath = Annotated[
    list[Path] | None,
    option(
        RUN,
        "Folder of tasks, searched before ./tasks; may be repeated.",
        "--task-path",
        file_okay=False,
        metavar="DIR",
    ),
]
Trusted = Annotated[
    bool,
    flag(
        SAFETY,
        "Accept the code, servers, variables, caps and prices that someone else's config names.",
        "--trust",
    ),
]
AllowUnsafe = Annotated[
    bool | None,
    flag(
        SAFETY,
        "Run code that models write even if this machine can't confine it.",
        "--allow-unsafe-code",
    ),
]
Patience = Annotated[
    float | None,
    option(
        BUDGET,
        "How long to wait for a server that is away; then the run stops (exit code 4; resumable)."
        "  [600, or the run's own]",
        min=0,
        max=86_400,
        metavar="SECONDS",
    ),
]
Budget = Annotated[float | None, option(BUDGET, "Hard cap in dollars.  [5]", metavar="USD")]


def provider_name(text: str) -> str:
    """The value of --provider: a provider's name, or local: with the folder of a trained team."""
    name, _, team = text.partition(":")
    if name == "local" and team:
        return f"local:{run_folder(team)}"
    if text not in PROVIDERS:
        known = ", ".join(name for name in PROVIDERS if name != "local")
        raise typer.BadParameter(f"'{text}' is none of {known} or local:RUN")
    return text


_Provider = Annotated[
    str | None,
    option(
        MODEL,
        "Who answers. auto: as the model's name says, else Claude with ANTHROPIC_API_KEY, OpenAI "
        "with OPENAI_API_KEY, else the embedded model. local:RUN: the weights that a run of "
        "backend local trained, or one of its checkpoints; local with --model: an untrained base.  "
        "[auto]",
        parser=provider_name,
        metavar="|".join([*(name for name in PROVIDERS if name != "local"), "local:RUN"]),
        autocompletion=lambda: [*PROVIDERS],
    ),
]
Model = Annotated[
    str | None, option(MODEL, "Model of that provider; openai/NAME names both.", metavar="M")
]
Task = Annotated[
    str | None,
    option(
        RUN,
        "`orchestry tasks list` shows them.  [code_review]",
        metavar="NAME",
        autocompletion=task_names,
    ),
]
ON = "local|processes[:N]|ray[://HOST:PORT]"
On = Annotated[
    str | None,
    option(
        RUN,
        "Where sandbox runs and further processes go: this process, processes of this machine, or "
        "a Ray cluster. See docs/scale.md.  [local]",
        metavar=ON,
    ),
]
Seed = Annotated[int | None, option(RUN, "Same seed, same run.  [0]", metavar="S")]
Config = Annotated[
    Path | None,
    option(
        RUN,
        "YAML over the defaults, or a preset: laptop, seeds, agents, quick_test, local_cpu, "
        "cooperation, two_models, local_writing, arxiv.",
        "--config",
        metavar="FILE|PRESET",
        autocompletion=presets,
    ),
]
Sets = Annotated[
    list[str] | None,
    option(
        RUN,
        "Any config key, such as search.concurrency=64; may be repeated.",
        "--set",
        metavar="A.B=C",
    ),
]
RunDir = Annotated[
    Path | None, option(OUTPUT, "The run's directory itself.  [runs/...]", metavar="DIR")
]
RunName = Annotated[
    str | None, option(OUTPUT, "The run's name: its directory is runs/NAME.", metavar="NAME")
]
DryRun = Annotated[
    bool, flag(OUTPUT, "Print calls, tokens and dollars; spend nothing.", "--dry-run")
]
ShowBest = Annotated[
    bool, flag(OUTPUT, "Show the best trajectory: advantages, credits.", "--show-best")
]
Verbose = Annotated[bool, flag(OUTPUT, "One line per episode, and tracebacks.", "--verbose")]
Json = Annotated[bool, flag(OUTPUT, "One JSON object on stdout.", "--json")]


class RunFlags(TypedDict, total=False):
    """Flags that change a RunConfig; None means not given."""

    backend: Annotated[BackendName | None, option(RUN, "How the team learns.  [api]")]
    recipe: Annotated[
        str | None,
        option(
            RUN,
            "Stages for one team, in turn: any of search, prompts, distil and magrpo, repeatable, "
            "such as search+distil+magrpo. See docs/recipes.md.",
            metavar="STEP+STEP",
        ),
    ]
    task: Task
    episodes: Annotated[int | None, option(RUN, "Problems to play.  [20]", metavar="N")]
    passes: Annotated[
        int | None,
        option(RUN, "In place of --episodes: play every train problem N times.", metavar="N"),
    ]
    steps: Annotated[
        str | None,
        option(RUN, "Backend ppo: environment steps, such as 500k or 10M.  [1M]", metavar="N"),
    ]
    scenario: Annotated[
        str | None,
        option(RUN, "A game's scenario, such as bucket_brigade's `hard`.", metavar="NAME"),
    ]
    opponents: Annotated[
        int | None,
        option(RUN, "A game's agents beside the first.", metavar="N", min=0),
    ]
    on: On
    cpu: Annotated[bool | None, flag(RUN, "Use no GPU.", "--cpu")]
    seed: Seed
    task_path: TaskPath
    file: Config
    sets: Sets
    provider: _Provider
    model: Model
    beam_width: Annotated[
        int | None, option(SEARCH, "States kept after a stage.  [2]", metavar="W")
    ]
    k_samples: Annotated[
        int | None, option(SEARCH, "Samples per agent and state.  [4]", metavar="K")
    ]
    lr: Annotated[
        float | None,
        option(LEARNING, "Learning rate.  [local 0.0001, ppo 0.003]", metavar="RATE"),
    ]
    batch_size: Annotated[
        int | None,
        option(
            LEARNING,
            "What an update learns from. Backend local: problems. Backend ppo: steps of all games "
            "together, a multiple of ppo.games.  [local 8, ppo 16384]",
            metavar="N",
        ),
    ]
    epochs: Annotated[
        int | None,
        option(
            LEARNING,
            "Backend ppo: how often each batch is learned from. For passes over the data: "
            "--passes.  [2]",
            metavar="N",
        ),
    ]
    checkpoint_interval: Annotated[
        str | None,
        option(
            LEARNING,
            "Backend local: keep the checkpoint of every N-th update. Backend ppo: steps between "
            "two checkpoints, such as 500k.",
            metavar="N",
        ),
    ]
    eval_interval: Annotated[
        str | None,
        option(
            LEARNING,
            "Updates (backend local) or steps (backend ppo) between two evaluations.  [none]",
            metavar="N",
        ),
    ]
    budget: Budget
    patience: Patience
    allow_unsafe_code: AllowUnsafe
    trust: Trusted


class LessonFlags(TypedDict, total=False):
    """Flags of the answers that weights are to learn; None means not given."""

    method: Annotated[
        Literal["sft", "dpo"] | None,
        option(
            LESSONS,
            "sft: the winners' answers; dpo: the better and the worse of two answers to one "
            "prompt.  [sft]",
        ),
    ]
    gold: Annotated[
        bool | None, flag(LESSONS, "The train problems' gold answers too, or alone.", "--gold")
    ]
    by: Annotated[
        Literal["reward", "advantage", "credit", "rating"] | None,
        option(LESSONS, "What trajectories are compared by.  [reward]"),
    ]
    top: Annotated[
        float | None,
        option(
            LESSONS,
            "Share of the trajectories that win, for each agent; with dpo, of the pairs.  "
            "[0.2, with dpo 1]",
            metavar="SHARE",
        ),
    ]
    min_reward: Annotated[
        float | None, option(LESSONS, "A winner has at least this reward.  [0]", metavar="R")
    ]
    drop_behaviors: Annotated[
        bool | None,
        flag(LESSONS, "Leave learned behaviours out of the prompts.", "--drop-behaviors"),
    ]


def spread(command: _CommandT) -> _CommandT:
    """Replaces `**flags: Unpack[T]` in the signature by the keys of T, so that Typer sees them."""
    signature = inspect.signature(command, eval_str=True)
    own = dict(signature.parameters)
    (flags,) = get_args(own.popitem()[1].annotation)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in get_type_hints(flags, include_extras=True).items()
    ]
    rest = [each.replace(kind=each.KEYWORD_ONLY) for each in own.values()]
    vars(command)["__signature__"] = signature.replace(parameters=[*options, *rest])
    return command


# --- what they mean -------------------------------------------------------------------------------

_FLAGS = {
    "backend": "backend",
    "recipe": "recipe.steps",
    "task": "task",
    "episodes": "episodes",
    "passes": "passes",
    "steps": "ppo.steps",
    "scenario": "options.scenario",
    "opponents": "options.agents",
    "provider": "provider.name",
    "model": "provider.model",
    "beam_width": "search.beam_width",
    "k_samples": "search.k_samples",
    "budget": "budget.usd",
    "patience": "retry.patience_s",
    "seed": "seed",
    "on": "executor",
    "allow_unsafe_code": "allow_unsafe_code",
}
"""Flag to config key."""
_BY_BACKEND = {
    "cpu": {"api": "learn.device", "local": "learn.device", "ppo": "ppo.device"},
    "lr": {"local": "learn.learning_rate", "ppo": "ppo.learning_rate"},
    "batch_size": {"local": "learn.every", "ppo": "ppo.horizon"},
    "epochs": {"ppo": "ppo.passes"},
    "checkpoint_interval": {"local": "learn.keep_every", "ppo": "ppo.checkpoint_every"},
    "eval_interval": {"local": "learn.evaluate_every", "ppo": "ppo.evaluate_every"},
}
"""Flags that users of other trainers type: to the config key of each backend that has one. Backend
api takes the device for `--provider local:RUN`."""
_INSTEAD = {
    "lr": "it takes no gradient steps: leave it out",
    "batch_size": "--set behaviors.every=N is its number of episodes per update",
    "epochs": "--passes N plays every train problem N times",
    "eval_interval": "it tests each change of its prompts on dev problems: leave it out",
    "checkpoint_interval": "its journal keeps every episode and update: leave it out",
}
"""What a backend without such a key has in its place."""
FLAG_OF = {key: f"--{flag.replace('_', '-')}" for flag, key in _FLAGS.items()}
FLAG_OF |= {
    key: f"--{flag.replace('_', '-')}"
    for flag, keys in _BY_BACKEND.items()
    for key in keys.values()
}
FLAG_OF["task_path"] = "--task-path"
"""Config key to flag."""


def trusting(flag: bool | None) -> Trust:
    """The value of --trust; without it, a person at a terminal is asked."""
    if flag or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return bool(flag)
    return lambda question: typer.confirm(question, err=True)


Layers = tuple[list[Path], list[str], dict[str, Any]]
"""Files, settings `a.b=c`, and flags by config key: the later one wins."""


def layers(flags: RunFlags) -> Layers:
    """What is merged over the defaults: configs/<backend>.yaml < --config < --set < flags."""
    from orchestry.core.config import resolve
    from orchestry.core.resolve import settings_of

    file, sets, given = flags.get("file"), flags.get("sets") or [], _given(flags)
    said = {key for key, value in (settings_of(sets) | given).items() if value is not None}
    if {"episodes", "passes"} <= said:
        raise ConfigError("--episodes and --passes both say how long the run is: give one")
    chosen = [preset_file(file)] if file else []
    files = [*_backend_file(resolve(chosen, sets, given).backend), *chosen]
    config = resolve(files, sets, given)
    if "episodes" in said and config.passes:  # a preset's
        given["passes"] = None
    return files, sets, given | _by_backend(flags, config)


def resolved(found: Layers, flags: RunFlags) -> RunConfig:
    """The config that layers come to. Raises ConfigError."""
    from orchestry.core.config import resolve
    from orchestry.core.ppo import check_settings

    config = resolve(*found)
    check_read(config.backend, flags)
    if config.backend == "ppo":
        check_settings(config)
    return config


def config_from(**flags: Unpack[RunFlags]) -> RunConfig:
    """Defaults < configs/<backend>.yaml < --config < --set < flags. Raises ConfigError, also if
    --config names other people's code or servers that are not confirmed."""
    found, file = layers(flags), flags.get("file")
    config = resolved(found, flags)
    own = file and not file.resolve().is_relative_to(Path("configs").resolve())
    if file and own and file == found[0][-1]:
        from orchestry.engine.trust import check_trust

        check_trust(config, file, trusting(flags.get("trust")), settings(flags))
    return config


def check_read(backend: str, flags: RunFlags, show_best: bool = False) -> None:
    """Raises ConfigError for what the command line gives, whatever its value, and the backend does
    not read."""
    from orchestry.core.ppo import reads, refuse_unread
    from orchestry.core.resolve import by_role, leaves, settings_of

    named = {key: key for key, _ in leaves(by_role(settings_of(flags.get("sets") or [])))}
    named |= {key: FLAG_OF.get(key, key) for key in _given(flags)}
    odd = [name for key, name in named.items() if not reads(backend, key)]
    if backend == "ppo":
        refuse_unread([*odd, *(["--show-best"] if show_best else [])])
    elif odd:
        raise ConfigError(
            f"only backend ppo reads {', '.join(odd)}, and this is backend {backend}: leave that "
            "out (--episodes says how long the others play)"
        )


def settings(flags: RunFlags) -> dict[str, Any]:
    """The keys that the command line itself gives, nested like the config."""
    from orchestry.core.resolve import put_key, settings_of

    found = settings_of(flags.get("sets") or [])
    for key, value in _given(flags).items():
        put_key(found, key, value)
    return found


def _given(flags: RunFlags) -> dict[str, Any]:
    """Config keys and values of the flags that were given."""
    found = {_FLAGS[k]: value for k, value in flags.items() if k in _FLAGS and value is not None}
    if (opponents := flags.get("opponents")) is not None:
        found[_FLAGS["opponents"]] = opponents + 1
    if task_path := flags.get("task_path"):
        found["task_path"] = [str(path) for path in task_path]
    return found


def _by_backend(flags: RunFlags, config: RunConfig) -> dict[str, Any]:
    """Keys and values of the flags whose key depends on the backend; a recipe's is local. Raises
    ConfigError where the backend has no such key."""
    backend = "local" if config.recipe.steps else config.backend
    found = dict[str, Any]()
    for name, value in flags.items():
        if name not in _BY_BACKEND or value is None:
            continue
        if backend not in (keys := _BY_BACKEND[name]):
            raise ConfigError(
                f"--{name.replace('_', '-')} is for backend {' and '.join(keys)}, and this is "
                f"backend {backend}: {_INSTEAD[name]}"
            )
        found[keys[backend]] = "cpu" if name == "cpu" else value
    if "ppo.horizon" in found:
        found["ppo.horizon"] = _horizon(found["ppo.horizon"], config.ppo.games)
    return found


def _horizon(batch: int, games: int) -> int:
    """Steps of each game in a batch of so many steps. Raises ConfigError if they can't be dealt
    out."""
    if batch < games or batch % games:
        raise ConfigError(
            f"--batch-size {batch}: a batch has the same number of steps of each of ppo.games="
            f"{games} games: give a multiple of that, or fewer ppo.games; for the actions per step "
            "of the optimizer: --set ppo.minibatch=N"
        )
    return batch // games


def _backend_file(backend: str) -> list[Path]:
    """The user's configs/<backend>.yaml in the working folder, else the one that ships."""
    return _shipped(backend)[:1]


def preset_file(file: Path) -> Path:
    """A bare name that is not a file is a preset in configs/, found as in `_backend_file`.

    Raises ConfigError for a name that is neither.
    """
    if len(file.parts) != 1 or file.exists():
        return file
    if found := _shipped(file.name):
        return found[0]
    raise ConfigError(unknown("config file or preset", file.name, [*presets("")]))


def _shipped(name: str) -> list[Path]:
    return [path for place in _configs() if (path := place / f"{name}.yaml").is_file()]


def _configs() -> tuple[Path, Path]:
    from orchestry.task.registry import bundled

    return Path("configs"), bundled("configs")
