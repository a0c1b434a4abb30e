"""The section of benchmarks.quality.joint: what the recipes' teams earn, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks import page
from benchmarks.quality.joint_budget import EXPERT, GROUP, MATCHED, RECIPES
from benchmarks.stats import Rows, columns, crossed, difference, mean, tabulate
from orchestry.report.stats import Interval
from orchestry.store.run import Run

CONTROL = "control"
SINGLE = ("p", "w")
JOINT = tuple(one for one in RECIPES if one not in SINGLE)


@dataclass(frozen=True, slots=True)
class Played:
    """A recipe with a seed."""

    stages: tuple[Run, ...]
    """() for the control."""
    tests: tuple[Run, ...]
    """The final team on the test problems; of expert iteration, the team after each round."""
    cpu_s: float = 0.0
    """Of all stages."""
    episodes: int = 0
    """The budget without trials."""

    @property
    def calls(self) -> Counter[str]:
        """Answers that the stages drew, by purpose. A distillation draws none, and has no
        summary."""
        found = Counter[str]()
        for run in self.stages:
            if (run.folder / "summary.json").exists():
                for row in run.summary.usage:
                    found[row.purpose] += row.calls
        return found


Seeds = Mapping[str, Sequence[Played]]
"""By recipe, one per seed."""


def report(played: Mapping[str, Seeds]) -> str:
    """The section's body; `played` is by task."""
    blocks = [_setting(played)]
    for task, recipes in played.items():
        blocks += [f"### {task}", _table(recipes), _verdict(recipes)]
        if EXPERT in recipes:
            blocks += [f"### Expert iteration on {task}", _expert(recipes)]
    return "\n\n".join(blocks)


def samples(runs: Sequence[Run]) -> Rows:
    """What one trajectory earns in the mean, by problem and seed."""
    return _rows(runs, best=False)


def best(runs: Sequence[Run]) -> Rows:
    """What the best of each problem's trajectories earns, by problem and seed."""
    return _rows(runs, best=True)


def _rows(runs: Sequence[Run], best: bool) -> Rows:
    return tabulate(
        {"": [*runs]},
        len(runs[0].episodes),
        lambda record: record.reward if best else record.mean_leaf_reward,
    )[""]


def final(played: Sequence[Played]) -> Rows:
    """Rewards of one trajectory of the final teams."""
    return samples([one.tests[-1] for one in played])


def ahead(recipes: Seeds) -> tuple[str, str, Interval]:
    """The best joint recipe, the better single one, and the first's lead."""
    first, second = (
        max(names, key=lambda name: mean(final(recipes[name]))) for names in (JOINT, SINGLE)
    )
    return first, second, crossed(difference(final(recipes[first]), final(recipes[second])))


def _setting(played: Mapping[str, Seeds]) -> str:
    recipes = next(iter(played.values()))
    seeds, first = len(recipes[CONTROL]), recipes["w"][0]
    config = first.tests[-1].config
    budgets = " and ".join(
        f"{GROUP * one['w'][0].episodes} on {task}" for task, one in played.items()
    )
    return (
        f"Seeds: {seeds}. Model {config['provider']['model']}, answers of at most "
        f"{config['sampling']['max_tokens']} tokens. p: behaviours in the prompts; w: weights by "
        f"MAGRPO. The budget of a recipe is {budgets}, in trajectories, trials of "
        "behaviours included; its stages share it evenly, and a stage p spends half of its share "
        "on trials (at most: the rest of a pair may be left). Calls are counted in the stages' "
        f"journals. A final team draws {config['learn']['group_size']} trajectories per test "
        "problem. Intervals are 95 % bootstraps over problems and seeds, paired where two teams "
        "are compared."
    )


def _table(recipes: Seeds) -> str:
    control = [one.tests[-1] for one in recipes[CONTROL]]
    base, n = samples(control), control[0].config["learn"]["group_size"]
    found = [{"team": CONTROL, "reward of one sample": _text(crossed(base))}]
    found[0] |= {"less the control's": "", "training calls": "0", "of them trials": ""}
    found[0] |= {"CPU minutes per seed": "0"}
    for name in RECIPES:
        rows = final(recipes[name])
        cells = {"team": name, "reward of one sample": _text(crossed(rows))}
        found.append(cells | {"less the control's": _text(crossed(difference(rows, base)))})
        found[-1] |= _cost(recipes[name])
    rows, calls = best(control), fmean(run.summary.calls for run in control)
    cells = {"team": f"best of {n} of the control", "reward of one sample": _text(crossed(rows))}
    cells |= {"less the control's": _text(crossed(difference(rows, base)))}
    found.append(cells | {"training calls": f"0, and {calls:.0f} on the test problems"})
    names = [*found[0]]
    return columns([{key: row.get(key, "") for key in names} for row in found], figures=False)


def _cost(played: Sequence[Played]) -> dict[str, str]:
    """What a recipe cost, seed by seed."""
    calls = [one.calls for one in played]
    return {
        "training calls": ", ".join(str(one.total()) for one in calls),
        "of them trials": ", ".join(str(one["trial"]) for one in calls),
        "CPU minutes per seed": f"{fmean(one.cpu_s for one in played) / 60:.1f}",
    }


def _verdict(recipes: Seeds) -> str:
    first, second, lead = ahead(recipes)
    control = best([one.tests[-1] for one in recipes[CONTROL]])
    over = crossed(difference(final(recipes[first]), control))
    accepted = {
        name: sum(run.summary.accepted for one in recipes[name] for run in one.stages)
        for name in RECIPES
        if name != "w"
    }
    counts = ", ".join(f"{name} {count}" for name, count in accepted.items())
    cause = (
        ""
        if any(accepted.values())
        else " So no prompt was changed, and a joint recipe was w on a part of the trajectories. "
        f"What prompts written by hand do in their place: {page.link('prompt_changes')} "
        f"(untrained), {page.link('prompt_changes_learned')} (a team of recipe w)."
    )
    return (
        f"The best joint recipe, {first}, less the better single one, {second}: {_text(lead)}, "
        f"{_word(lead)}. Both were chosen by these figures, which favours the joint recipes, of "
        f"which there are more. One sample of {first} less the best of the control's: "
        f"{_text(over)}, {_word(over)}. Behaviours in the prompts at the end of stages, all seeds: "
        f"{counts}.{cause}"
    )


def _expert(recipes: Seeds) -> str:
    base = samples([one.tests[-1] for one in recipes[CONTROL]])
    expert = recipes[EXPERT]
    teams = {CONTROL: base}
    for number in range(len(expert[0].tests)):
        teams[f"round {number + 1}"] = samples([one.tests[number] for one in expert])
    teams["MAGRPO, equal samples"] = final(recipes["w"])
    teams["MAGRPO, equal CPU time"] = matched = final(recipes[MATCHED])
    last = final(expert)
    lines = columns(
        [{"team": name, "reward of one sample": _text(crossed(teams[name]))} for name in teams],
        figures=False,
    )
    leads = {
        name: crossed(difference(last, rows))
        for name, rows in (("equal samples", final(recipes["w"])), ("equal CPU time", matched))
    }
    costs = columns(
        [
            {"team": name, **_cost(recipes[key])}
            for name, key in (("expert", EXPERT), ("equal samples", "w"), ("equal CPU", MATCHED))
        ],
        figures=False,
    )
    said = "; ".join(
        f"less MAGRPO at {name}: {_text(one)}, {_word(one)}" for name, one in leads.items()
    )
    episodes = ", ".join(str(one.episodes) for one in recipes[MATCHED])
    return (
        f"{lines}\n\n{costs}\n\nThe last round {said}. MAGRPO at equal CPU time played {episodes} "
        "episodes, from the CPU time of the whole runs (loading of the model included)."
    )


def _text(found: Interval) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _word(found: Interval) -> str:
    return "ahead" if found.low > 0 else "behind" if found.high < 0 else "not told from 0"
