"""Backend local on tiny models: runs that learn, what they cost, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError, LearnError, PromptTooLong
from orchestry.core.machine import cores
from orchestry.engine.estimate import estimate
from orchestry.engine.run import prepare, resume
from orchestry.report.lessons import lessons
from orchestry.report.runs import read_experiments
from orchestry.report.tables import fault_counts
from orchestry.store.journal import Answered, Learned
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    EVERY,
    GROUP,
    ROLES,
    TASK,
    adapters,
    config,
    learned,
    settings,
    surprise,
    trainer,
    turns,
    write_task,
)
from tests.backends.local.tiny import tiny_folder
from tests.core.test_machine import busy
from tests.store.test_trackers import BOARD, assert_shows, curves

pytestmark = pytest.mark.usefixtures("one_thread")
IN_TURN = (
    TASK.replace("() if state.said else ROLES", "ROLES[len(state.said) :][:1]")
    .replace("return state.problem.prompt", "return ''.join((state.problem.prompt, *state.said))")
    .replace("said=tuple(actions[role] for role in ROLES)", "said=(*state.said, *actions.values())")
)
"""The second agent reads what the first said."""
JUDGED = ("judge.enabled=true", "judge.provider.name=fake")


def test_a_run_updates_its_adapters_and_says_what_came_of_it(finished: Run) -> None:
    first, second = learned(finished)
    assert (first.update, second.update) == (1, 2)
    assert first.state["checkpoint"] == "checkpoints/000004"
    assert first.state["reward"] == pytest.approx(
        fmean(episode.mean_leaf_reward for episode in finished.episodes[:EVERY])
    )
    for state in (first.state, second.state):
        assert state["samples"] + state["skipped"] == EVERY * GROUP * 2
        assert state["samples"] > 0
        assert state["tokens"] >= state["samples"]
        assert set(state["norms"]) == set(ROLES)
        assert all(norm > 0 for norm in state["norms"].values())
        assert state["rate"] == 0.03
    assert finished.summary.updates == 2
    assert finished.summary.stopped == "done"


def test_an_episode_is_a_group_of_independent_chains(finished: Run) -> None:
    assert [episode.episode for episode in finished.episodes] == list(range(2 * EVERY))
    for episode in finished.episodes:
        assert len(list(episode.leaves())) == GROUP
        assert len(turns(episode)) == GROUP * len(ROLES)
    first_epoch = {episode.problem for episode in finished.episodes[:4]}
    assert first_epoch == {f"train-{n}" for n in range(4)}


def test_episodes_are_drawn_by_the_weights_that_the_updates_before_left(
    finished: Run, model: str
) -> None:
    fresh, after = trainer(model), trainer(model, finished.folder / "checkpoints" / "000004")
    assert surprise(fresh, finished.episodes[EVERY - 1]) < 1e-4
    assert surprise(after, finished.episodes[EVERY]) < 1e-4
    assert surprise(fresh, finished.episodes[EVERY]) > 1e-2


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is dep:FutureWarning")
def test_a_checkpoint_loads_in_plain_peft(finished: Run, model: str) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    folder = finished.folder / "checkpoints" / "000008"
    loader: Any = AutoModelForCausalLM
    worn: Any = peft.PeftModel.from_pretrained(loader.from_pretrained(model), folder / "right")
    ours, ids = trainer(model, folder), torch.arange(3, 40)[None]
    (crew,) = ours.crews
    with torch.no_grad(), crew.adapters.rows(1):
        expected = crew.base.model(ids).logits
    with torch.no_grad():
        assert torch.allclose(worn(ids).logits, expected, atol=1e-5)


def test_calls_are_counted_and_cost_nothing(finished: Run) -> None:
    calls = 2 * EVERY * GROUP * len(ROLES)
    assert (finished.summary.calls, finished.summary.cost_usd) == (calls, 0.0)
    assert {row.agent: row.calls for row in finished.summary.usage} == dict.fromkeys(
        ROLES, calls // 2
    )
    drawn = [turn.completion for episode in finished.episodes for turn in turns(episode)]
    assert finished.summary.output_tokens == sum(completion.output_tokens for completion in drawn)
    answered = [event for event in finished.events if isinstance(event, Answered)]
    assert {event.source for event in answered} == {"weights"}
    assert len({event.key for event in answered}) == len(answered) == calls


def test_the_config_is_written_as_it_was_run(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = [one for one in settings(model, tasks) if not one.startswith("learn.threads")]
    plan = prepare(resolve([], sets))
    assert plan.config.learn.threads
    assert plan.config.sampling.temperature == 0.8
    assert (plan.config.search.strategy, plan.config.search.k_samples) == ("chains", GROUP)
    assert plan.config.behaviors.enabled is False
    assert prepare(plan.config).config == plan.config


def test_a_config_is_settled_alike_on_a_busy_machine(model: str, tasks: Path) -> None:
    """The number of threads decides the last bits of all that a run computes."""
    chosen = config(model, tasks, "learn.threads=null")
    idle = prepare(chosen).config
    with busy():
        assert prepare(chosen).config == idle
    assert idle.learn.threads == cores()


def test_a_backend_that_is_not_open_knows_of_no_evaluation(model: str, tasks: Path) -> None:
    backend = prepare(config(model, tasks, "learn.evaluate_every=1")).backend
    assert (backend.best_update, backend.dev_rewards) == (None, {})
    assert (backend.updates, backend.dev_plays) == (0, 3 * 4)


def test_a_relative_model_is_found_again_from_another_folder(
    model: str, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(model).parent)
    assert prepare(config("./tiny", tasks)).config.provider.model == model
    monkeypatch.chdir("/")
    with pytest.raises(ConfigError, match=r"'\./tiny' is not a folder"):
        prepare(config("./tiny", tasks))


@pytest.mark.slow
def test_a_team_learns_what_its_reward_asks_for_and_not_at_rate_zero(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Mean rewards of the first and the last block, of eight chains each."""
    sets = ("episodes=40", "learn.group_size=8")
    found = {}
    for rate in (0.03, 0.0):
        run = orchestry.train(
            config(model, tasks, *sets, f"learn.learning_rate={rate}"), tmp_path / str(rate)
        )
        rewards = [episode.mean_leaf_reward for episode in run.episodes]
        found[rate] = fmean(rewards[-EVERY:]) - fmean(rewards[:EVERY])
    assert found[0.03] > 0.4
    assert abs(found[0.0]) < 0.05


def test_a_dry_run_counts_the_calls_at_no_cost(model: str, tasks: Path) -> None:
    found = estimate(config(model, tasks))
    assert found.calls == 2 * EVERY * GROUP * len(ROLES)
    assert found.cost_usd.p5 == found.cost_usd.expected == found.cost_usd.p95 == 0.0
    assert {(row.agent, row.purpose) for row in found.usage} == {(role, "act") for role in ROLES}


def test_a_dry_run_counts_replays_where_they_ask_again(model: str, tmp_path: Path) -> None:
    """Of two agents in turn, what the second says is asked again where the first did otherwise."""
    tasks = write_task(tmp_path / "tasks", IN_TURN)
    sets = ("learn.credit=replay", "learn.rewards=final", f"episodes={EVERY}")
    found = estimate(config(model, tasks, *sets))
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    replayed = sum(row.calls for row in found.usage if row.purpose == "credit")
    really = sum(row.calls for row in run.summary.usage if row.purpose == "credit")
    assert replayed == pytest.approx(really)
    assert really > 0


def test_a_report_counts_the_actions_that_taught_nothing(model: str, tmp_path: Path) -> None:
    """In a chain each later state was sampled once, but is compared with the other chains' own."""
    tasks = write_task(tmp_path / "tasks", IN_TURN)
    run = orchestry.train(config(model, tasks, f"episodes={EVERY}"), tmp_path / "run")
    (update,) = learned(run)
    used, left = update.state["samples"], update.state["skipped"]
    assert (used + left, used > left) == (EVERY * GROUP * len(ROLES), True)
    (experiment,) = read_experiments([run.folder])
    (said,) = (one for one in lessons(experiment) if "taught nothing" in one)
    assert said.endswith(f"({left} of {used + left}).")
    found = fault_counts(run)
    assert found["actions that an update left out, for want of variance"] in said
    assert f" of {EVERY})" in found["groups of several samples whose advantages are all zero"]


def test_a_run_stops_at_its_budget_in_order_and_goes_on(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Only the judge costs: the weights bill nobody."""
    judged = ("judge.enabled=true", "judge.provider.name=fake", "judge.when=always")
    priced = ("prices.fake-1.input=100", "prices.fake-1.output=500", "episodes=12")
    whole = orchestry.train(config(model, tasks, *judged, *priced), tmp_path / "whole")
    cap = whole.summary.cost_usd * 0.6
    run = orchestry.train(
        config(model, tasks, *judged, *priced, f"budget.usd={cap}"), tmp_path / "run"
    )
    assert run.summary.stopped == "budget"
    assert 0 < run.summary.cost_usd <= cap
    assert len(run.episodes) < 12
    assert run.episodes == whole.episodes[: len(run.episodes)]
    resumed = resume(run.folder, {"budget": {"usd": 5.0}})
    assert resumed.summary.stopped == "done"
    assert resumed.episodes == whole.episodes
    assert adapters(resumed.folder) == adapters(whole.folder)


def test_non_finite_numbers_stop_the_run_and_the_batch_is_kept(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    """Adapters of absurd size: B is zero, so answers are sound, but its gradient overflows."""
    (absurd,) = (crew.adapters for crew in trainer(model, alpha=10**9).crews)
    for weight in absurd.parameters()[::2]:
        weight.data.mul_(1e36)
    absurd.save(tmp_path / "absurd")
    sets = (f"learn.from={tmp_path / 'absurd'}", f"learn.alpha={10**9}")
    path = tmp_path / "run" / "failed-update-1.json"
    with pytest.raises(
        LearnError, match=r"step 1 is .*no weight has moved by it; all weights are"
    ) as caught:
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert str(caught.value).endswith(f"the batch is {path}")
    batch = json.loads(path.read_text())
    assert batch["actions"] == dict.fromkeys(ROLES, EVERY * GROUP)
    assert {"agent", "prompt_ids", "ids", "logprobs", "advantage"} <= batch["samples"][0].keys()
    run = load_run(tmp_path / "run")
    assert len(run.episodes) == EVERY
    assert not learned(run)
    assert run.summary.stopped == "failed"
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["provider.model=/no/such/folder"], "'/no/such/folder' is not a folder here: correct"),
        (["judge.enabled=true"], "has no judge of its own: name one in judge.provider.name"),
        (["judge.enabled=true", "judge.provider.model=m"], "judge.provider.name"),
        ([*JUDGED, "judge.when=undecided"], "would never be asked: leave out judge.when"),
        (
            [*JUDGED, "learn.credit=replay", "learn.rewards=final"],
            "judge.weight=0.5: set judge.weight=0, or learn.credit=joint",
        ),
        (["provider.name=fake"], "has no provider fake: leave out provider.name"),
        (
            ["agents.left.provider=anthropic"],
            "leave out agents.left.provider and name a base of the agent's own in agents.left",
        ),
        (["agents.left.model=./other"], r"the model './other' is not a folder here"),
        (["learn.group_size=1"], "every advantage is 0, so nothing would be learned"),
        (["learn.clip=0.2"], "limits only the second .* learn.epochs=1 takes one step"),
        (["learn.from=/no/such/place"], "learn.from: /no/such/place is not a folder here: give a"),
        (["learn.from=/proc/self"], "learn.from: /proc/self holds no adapters: give a checkpoint"),
        (["learn.epochs=2"], "learns from actions of an older policy: set learn.clip"),
        (["behaviors.enabled=true"], "learns by gradients"),
        (["search.k_samples=8"], "draws independent chains, .* leave out search.k_samples"),
        (["learn.group_size=auto", "learn.kl=0.1"], "learn.kl=0.1 would not: set it to 0.0"),
        (["learn.group_size=auto", "search.joint=cross"], "leave out search.joint"),
        (["learn.group_mean=6"], "set that, or learn.group_size=6"),
        (["search.branch=tree", "learn.group_size=auto"], "takes learn.group_size as a number"),
        (["search.branch=tree", "learn.grouping=agent"], "takes learn.grouping=history or turn"),
        ([*JUDGED, "search.branch=tree"], "has too many of them: set judge.enabled=false"),
        (["search.branch=tree", "search.max_nodes=3"], "would reach 4 states of problem train-0"),
        (["search.strategy=single"], "leave out search.strategy"),
        (["search.beam_width=5"], "leave out search.beam_width"),
        (["credit.share=0.1"], "its replays are learn.credit=replay: leave out credit.share"),
        (["pace=5"], "it draws the episodes of an update together: leave out pace"),
        (["agents.left.temperature=0"], "left would answer at temperature 0"),
        (["sampling.temperature=0"], "left, right would answer at temperature 0"),
        (["learn.top_k=1"], r"left, right would answer at learn\.top_k=1, and learns only"),
    ],
)
def test_what_it_would_not_read_is_refused_before_anything_is_written(
    model: str, tasks: Path, tmp_path: Path, sets: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_likeliest_answers_can_be_played_without_learning(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("sampling.temperature=0", "learn.enabled=false", "episodes=2")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    for episode in run.episodes:
        assert len({(turn.agent, turn.completion.text) for turn in turns(episode)}) == len(ROLES)


def test_a_run_too_short_to_learn_says_so(model: str, tasks: Path) -> None:
    notes = prepare(config(model, tasks, "episodes=3")).backend.notes
    assert any("nothing is learned: an update takes learn.every=4" in note for note in notes)
    assert not any("nothing is learned" in n for n in prepare(config(model, tasks)).backend.notes)


def test_a_judge_of_another_provider_is_asked(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = ("judge.enabled=true", "judge.provider.name=fake", "judge.when=always", "episodes=4")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert {row.purpose for row in run.summary.usage} == {"act", "judge"}
    assert len(learned(run)) == 1


def test_the_gradient_sees_the_judge_by_its_weight(
    model: str, tasks: Path, tmp_path: Path, finished: Run
) -> None:
    """At weight 0 the adapters are those of a run without it; the task's rewards are reported."""
    found = {}
    for weight in (0, 1):
        sets = (*JUDGED, f"judge.weight={weight}", "episodes=4")
        run = orchestry.train(config(model, tasks, *sets), tmp_path / str(weight))
        assert run.summary.judgements.get("rated", 0) >= 3
        assert run.rewards != []
        assert run.episodes[0].mean_leaf_reward == pytest.approx(
            finished.episodes[0].mean_leaf_reward
        )
        found[weight] = adapters(run.folder)
    plain = {
        k: v for k, v in adapters(finished.folder).items() if k.startswith("checkpoints/000004")
    }
    assert found[0] == plain
    assert all(found[1][name] != plain[name] for name in plain)


def test_a_run_whose_prompts_never_fit_ends_at_once(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("sampling.max_tokens=500",)
    with pytest.raises(PromptTooLong, match=r"passes the 512 of .*lower max_tokens"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert load_run(tmp_path / "run").summary.stopped == "failed"


def test_an_agent_whose_prompt_does_not_fit_says_nothing_and_the_others_learn(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("agents.left.system_prompt=" + 500 * "x", "episodes=4")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    said = {(turn.agent, turn.completion.stop) for e in run.episodes for turn in turns(e)}
    assert ("left", "too_long") in said
    assert said & {("right", "end"), ("right", "length")}
    (update,) = learned(run)
    assert update.state["norms"]["left"] == 0.0 < update.state["norms"]["right"]


def test_agents_may_have_bases_of_their_own(
    model: str, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_folder(tmp_path / "other", "qwen2", seed=1)
    monkeypatch.chdir(tmp_path)
    run = orchestry.train(
        config(model, tasks, "agents.right.model=./other", "episodes=4"), tmp_path / "run"
    )
    assert run.config["agents"]["right"]["model"] == str(other)
    bases = {(t.agent, t.completion.model) for e in run.episodes for t in turns(e)}
    assert bases == {("left", model), ("right", str(other))}
    assert {"left", "right"} < {path.name for path in run.folder.glob("checkpoints/000004/*")}


@pytest.mark.slow
def test_credits_by_replay_learn_the_same_task(model: str, tasks: Path, tmp_path: Path) -> None:
    sets = ("episodes=40", "learn.credit=replay", "learn.rewards=final")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    rewards = [episode.mean_leaf_reward for episode in run.episodes]
    assert fmean(rewards[-EVERY:]) - fmean(rewards[:EVERY]) > 0.2
    calls = {row.purpose: row.calls for row in run.summary.usage if row.agent == "left"}
    assert calls == {"act": 40 * GROUP}  # a single stage's siblings are all that is needed


def test_who_names_the_embedded_model_gets_it_on_every_machine() -> None:
    plan = prepare(resolve([], ["backend=local", "task=tldr", "provider.name=embedded"]))
    assert plan.config.provider.model == "embedded"


def test_a_process_that_follows_another_runs_nothing_of_its_own(model: str, tasks: Path) -> None:
    launch = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    with pytest.raises(ConfigError, match="process 1 of a launch follows process 0"):
        prepare(config(model, tasks), environ=launch)


def test_a_judge_that_is_named_rates_every_episode_of_a_task_that_asks_for_one(
    model: str, tmp_path: Path
) -> None:
    """Nothing is pruned here, so `undecided` would never ask it."""
    tasks = write_task(
        tmp_path / "tasks", TASK.replace('name = "letters"', 'name = "letters"\n    judged = True')
    )
    sets = ("judge.enabled=true", "judge.provider.name=fake", "episodes=4")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert {row.purpose for row in run.summary.usage} == {"act", "judge"}


TWO_TURNS = TASK.replace("() if state.said else", "() if len(state.said) == 4 else").replace(
    "said=tuple(", "said=state.said + tuple("
)
OPTIONS = (
    "learn.discount=0.5",
    "learn.rewards=final",
    "learn.grouping=agent",
    "learn.baseline=leave_one_out",
    "learn.normalise=true",
    "learn.reduce=mean",
    "search.joint=cross",
    "sampling.temperature=1.0",
)


@pytest.fixture(scope="module")
def two_turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), TWO_TURNS)


@pytest.fixture(scope="module")
def plain_loss(model: str, two_turns: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    return loss(model, two_turns, tmp_path_factory.mktemp("runs") / "run")


def loss(model: str, tasks: Path, folder: Path, *more: str) -> float:
    """Of a run's only update."""
    chosen = config(model, tasks, f"episodes={EVERY}", "learn.group_size=2", *more)
    (update,) = learned(orchestry.train(chosen, folder))
    assert update.state["samples"] > 0
    return float(update.state["loss"])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.slow
def test_an_option_of_learning_is_not_ignored(
    option: str, plain_loss: float, model: str, two_turns: Path, tmp_path: Path
) -> None:
    """Ignored, it would give by the same seed the very update of the defaults."""
    assert loss(model, two_turns, tmp_path / "run", option) != plain_loss


def test_combined_actions_count_once(model: str, two_turns: Path, tmp_path: Path) -> None:
    """Two answers an agent make four pairs, and each pair draws one more."""
    few = (f"episodes={EVERY}", "learn.group_size=2", "search.joint=cross")
    (update,) = learned(orchestry.train(config(model, two_turns, *few), tmp_path / "run"))
    assert update.state["samples"] + update.state["skipped"] == EVERY * len(ROLES) * (2 + 4)


def test_a_reward_without_variance_costs_no_forward_pass(model: str, tmp_path: Path) -> None:
    flat = TWO_TURNS.replace("quality=", "quality=0.5 + 0 * ")
    tasks = write_task(tmp_path / "tasks", flat)
    run = orchestry.train(config(model, tasks, f"episodes={EVERY}"), tmp_path / "run")
    (update,) = learned(run)
    assert (update.state["samples"], update.state["tokens"]) == (0, 0)
    assert update.state["skipped"] == EVERY * GROUP * 2 * len(ROLES)
    assert set(update.state["norms"].values()) == {0.0}


def test_each_update_is_shown_at_the_last_episode_that_it_learned_from(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    run = orchestry.train(config(model, tasks, BOARD, "episodes=6"), tmp_path / "run")
    run = run.resume({"episodes": 8})  # the last two were no update's: played again
    found = curves(run.folder)
    assert_shows(found, run.folder)
    updates = [event.state for event in run.events if isinstance(event, Learned)]
    assert [step for step, _ in found["learn/loss"]] == [3, 7]
    for key in ("loss", "rate", "reward", "samples", "skipped", "tokens"):
        expected = [state[key] for state in updates]
        assert [x for _, x in found[f"learn/{key}"]] == pytest.approx(expected)
    for agent, norm in updates[-1]["norms"].items():
        assert found[f"learn/norms/{agent}"][-1][1] == pytest.approx(norm)


@pytest.mark.parametrize(
    ("dtype", "lacks"), [("bfloat16", True), ("bfloat16", False), ("float32", True)]
)
def test_bfloat16_without_instructions_for_it_is_noted(
    model: str, tasks: Path, dtype: str, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestry.backends.local.model.lacks_bfloat16", lambda: lacks)
    plan = prepare(config(model, tasks, f"learn.dtype={dtype}", "learn.device=cpu"))
    told = any("no instructions for bfloat16" in note for note in plan.backend.notes)
    assert told is (dtype == "bfloat16" and lacks)
