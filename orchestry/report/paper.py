"""How a run of backend local differs from the MAGRPO paper's runs (arXiv 2508.04652).

The algorithm is the paper's; the settings are those of its authors' published configs, since they
are complete: github.com/OpenMLRL/LLM_Collab_Code_Generation, configs/magrpo_he_config.yaml at
07663c1, and github.com/OpenMLRL/LLM_Collab_Writing, configs/magrpo_tldr_config.yaml and
magrpo_arxiv_config.yaml at 00ec4aa. Results are those of the paper's table on code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestry.core.resolve import leaves
from orchestry.report.held_out import held_evaluations
from orchestry.report.outcomes import solved_tag
from orchestry.report.runs import Experiment, Salvaged
from orchestry.report.text import inline, table

SOURCE = (
    "The paper is arXiv 2508.04652; its settings are those of its authors' configs "
    "(magrpo_he_config.yaml at 07663c1 for code, magrpo_tldr_config.yaml and "
    "magrpo_arxiv_config.yaml at 00ec4aa for writing). Its figures are on other problems and a "
    "larger base, so they can't be compared with this run's. The configs also divide advantages by "
    "their deviation, which the paper's equation 1 does not."
)
_Row = tuple[str, str]
_ALGORITHM: Mapping[str, _Row] = {
    "learn.baseline": ("an action is compared with", "mean"),
    "learn.credit": ("an action's return is that of", "joint"),
    "learn.rewards": ("what a stage's action earns", "turns"),
    "learn.discount": ("discount", "1.0"),
    "learn.kl": ("weight of a KL to the base", "0.0"),
    "learn.clip": ("clipped ratio", "none"),
    "learn.normalise": ("advantages divided by their deviation", "no"),
    "learn.reduce": ("log-probability of an answer", "sum"),
    "learn.method": ("what is trained", "full"),
    "learn.shared": ("one set of weights for all agents", "no"),
    "learn.group_size": ("trajectories of a problem (G)", "4"),
}
_CODE: Mapping[str, _Row] = {
    "model": ("base", "Qwen/Qwen2.5-Coder-3B"),
    "learn.learning_rate": ("learning rate", "2e-05"),
    "sampling.temperature": ("temperature", "0.6"),
    "learn.top_p": ("top-p", "0.6"),
    "sampling.max_tokens": ("longest answer, tokens", "256"),
    "options.turns": ("turns of each agent", "2"),
    "options.bank": ("problems", "humaneval (and coophumaneval)"),
    "played": ("episodes", "780 (130 problems, 6 times)"),
}
_WRITING: Mapping[str, _Row] = {
    "model": ("base", "Qwen/Qwen3-1.7B"),
    "learn.learning_rate": ("learning rate", "5e-06"),
    "sampling.temperature": ("temperature", "0.7"),
    "learn.top_p": ("top-p", "0.9"),
    "sampling.max_tokens": ("longest answer, tokens", "256"),
    "played": ("episodes", "2200 (1100 problems, twice)"),
}
_TASKS: Mapping[str, Mapping[str, _Row]] = {
    "code_collaboration": _CODE,
    "tldr": {**_WRITING, "options.bank": ("problems", "tldr")},
    "arxiv": {**_WRITING, "options.bank": ("problems", "arxiv")},
}
_REWARDS = {
    "code_collaboration": (
        "four levels; cooperation is read from the text of the code",
        "four parts; cooperation is measured by running the halves apart",
    ),
    **dict.fromkeys(
        ("tldr", "arxiv"),
        (
            "a level that fails ends the sum; nothing on fluency or copies",
            "a part scales those after it; soundness is measured",
        ),
    ),
}
_RESULTS = (
    "HumanEval 54.8 %, CoopHumanEval 68.2 % with one turn; 67.9 % and 73.2 % with two; a single "
    "model 38.7 % and 50.0 %"
)


_WORDS = {"None": "none", "True": "yes", "False": "no"}


def differences(experiments: Sequence[Experiment]) -> str:
    """A table of the paper's settings beside each run's; '' without a run of backend local."""
    trained = [one for one in experiments if one.run.config.get("backend") == "local"]
    pieces = [_table(one, len(trained) > 1) for one in trained]
    return "\n\n".join([SOURCE, *pieces]) if pieces else ""


def _table(experiment: Experiment, several: bool) -> str:
    task = str(experiment.run.config.get("task"))
    own = _own(experiment)
    rows = [
        [
            f"{name} ({key})" if "." in key else name,
            paper,
            own.get(key, "-"),
            _verdict(experiment.run, key, paper == own.get(key, "-")),
        ]
        for key, (name, paper) in {**_ALGORITHM, **_TASKS.get(task, {})}.items()
    ]
    if reward := _REWARDS.get(task):
        rows.append(["reward", *reward, "differs"])
    if task == "code_collaboration":
        rows.append(["pass@1", _RESULTS, _passed(experiment), "other problems"])
    cells = [[inline(cell, longest=300) for cell in row] for row in rows]
    head = f"{inline(experiment.label)}:\n\n" if several else ""
    return head + table(["", "paper", "this run", ""], cells, figures=False)


def _verdict(run: Salvaged, key: str, equal: bool) -> str:
    if key == "learn.rewards" and not equal and _acts_once(run):
        return "no difference: agents act once"
    return "same" if equal else "differs"


def _acts_once(run: Salvaged) -> bool:
    paths = [record.path(leaf.id) for record in run.episodes for leaf in record.leaves()]
    return bool(paths) and all(sum(bool(node.turns) for node in path) == 1 for path in paths)


def _own(experiment: Experiment) -> dict[str, str]:
    """The run's own settings as text, by key; options that were left out have their defaults."""
    run, config = experiment.run, dict(leaves(experiment.run.config))
    usual: dict[str, Any] = {"options.turns": 1, "options.bank": "own"}
    values = {**usual, **config}
    if values.get("learn.group_size") is None:
        values["learn.group_size"] = "auto"
    return {
        **{key: _WORDS.get(str(value), str(value)) for key, value in values.items()},
        "model": run.summary.model,
        "played": str(len(run.episodes)),
    }


def _passed(experiment: Experiment) -> str:
    """pass@1 on held-out problems after the last update."""
    found = [one for one in held_evaluations(experiment) if 1 in one.measures.pass_at]
    if not found or not solved_tag(experiment.run):
        return "not measured: orchestry evaluate RUN --split test"
    last = max(found, key=lambda one: (one.split == "test", one.update or 0))
    share = last.measures.pass_at[1]
    return f"{100 * share.mean:.1f} % on its {last.split} problems"
