"""Updates of the library on planted effects: what enters, what is refused, what has to leave."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

import orchestry
from orchestry.backends.api.distil import Author
from orchestry.backends.api.learner import SIDE_COSTS, Learner, State
from orchestry.backends.api.pairs import (
    AHEAD,
    BATCH,
    TOGETHER,
    Played,
    coins,
    cost,
    together_now,
    tried_gains,
)
from orchestry.backends.api.race import FIRST, Entrant, Race
from orchestry.backends.gold import Move
from orchestry.backends.library import Behavior, Evidence, Library
from orchestry.core.config import BehaviorsConfig, resolve
from orchestry.core.seeds import derive
from orchestry.core.types import Completion, Message, Part, Problem, Request, Score, Trial, Turn
from orchestry.store.records import EpisodeRecord, GroupRecord, NodeRecord, Power
from tests.toys import Scripted, Words

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tasks"
ROLES = ("writer", "reviewer", "refactorer")
BASE, NOISE = 0.5, 0.1
DEV = Words().problems("dev")


class Planted:
    """An arena in which the last word of a behaviour is its effect."""

    def __init__(self, now: Mapping[str, float] | None = None) -> None:
        self.now = now or {}
        """Effects that are other than their text says, by text."""
        self.seen: list[tuple[int, str]] = []
        self.most_rules = 0

    async def play(
        self, library: Library, problem: Problem, seed: int, still: Collection[str]
    ) -> Played:
        self.seen.append((seed, problem.id))
        self.most_rules = max(self.most_rules, *(len(library.accepted(role)) for role in ROLES))
        texts = [b.text for role in ROLES for b in library.accepted(role)]
        effect = sum(self.now.get(text, planted(text)) for text in texts)
        rng = random.Random(derive(seed, *texts))
        value = min(1.0, max(0.0, BASE + effect + rng.gauss(0.0, NOISE)))
        return Played(value, tuple(turn(role, library.prompt(role, "p")) for role in ROLES))

    async def gold(self, seed: int, count: int) -> Sequence[Move]:
        return ()


def turn(role: str, prompt: str) -> Turn:
    said = Completion(text="x", model="m", usd=0.25)
    return Turn(agent=role, messages=(Message(role="system", content=prompt),), completion=said)


def planted(text: str) -> float:
    return float(text.split()[-1]) if text.startswith(VERBS) else 0.0


VERBS = ("check", "count", "name", "quote", "sort", "split", "start", "trace", "weigh")
GOOD, BAD = "check every line twice 0.2", "name no variable at all -0.2"


WON = Evidence(pairs=50, lift=0.2, low=0.1, high=0.3, e_value=40.0, level=0.025, calls=300)


def texts(*effects: float) -> Iterator[str]:
    """Unlike rules with these effects, then useless ones."""
    for place, effect in enumerate([*effects, *[0.0] * 30]):
        verb, other = VERBS[place % len(VERBS)], VERBS[-1 - place // len(VERBS)]
        yield f"{verb} what {other}{place} says {effect}"


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Sequence[EpisodeRecord]:
    """Five real episodes, whose trajectories differ in value."""
    sets = ["task=words", f"task_path=[{FIXTURES}]", "provider.name=fake", "episodes=5"]
    return orchestry.train(resolve([], sets), tmp_path_factory.mktemp("run") / "run").episodes


def learner(
    texts: Iterator[str],
    arena: Planted,
    states: Sequence[State] | None = None,
    budget: float | None = None,
    seed: int = 0,
    **changes: Any,
) -> Learner:
    """One whose distiller answers with the next text each time."""

    def distilled(request: Request) -> str:
        return json.dumps({"behaviors": [{"text": next(texts), "why": "planted"}]})

    config = BehaviorsConfig(enabled=True).model_copy(
        update={"candidates": 1, "propose": ("rules", "examples"), **changes}
    )
    return Learner(
        config,
        seed,
        Words.agents,
        prompts=dict.fromkeys(ROLES, "p"),
        dev=DEV,
        arena=arena,
        author=Author(Scripted(distilled), "m", 256),
        updates=6,
        budget=budget,
        states=states or [started(Library(task="words", model="m"))],
    )


def started(library: Library) -> State:
    return State.first(library, 0.05)


def racing(state: State) -> list[str]:
    return [one.behavior for one in state.race.entrants]


def rules(library: Library, status: str) -> list[str]:
    return [b.text for b in library.behaviors if b.status == status and b.kind == "rule"]


class Failing(Planted):
    """One of whose plays a share fails."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    async def play(
        self, library: Library, problem: Problem, seed: int, still: Collection[str]
    ) -> Played:
        played = await super().play(library, problem, seed, still)
        texts = [b.text for role in ROLES for b in library.accepted(role)]
        failed = random.Random(derive(seed, "fails", *texts)).random() < self.share
        return Played(None, ()) if failed else played


async def test_a_play_that_failed_makes_no_pair(block: Sequence[EpisodeRecord]) -> None:
    subject = learner(texts(0.2), Failing(0.3))
    for _ in range(4):
        await subject.update(block, {})
    assert rules(subject.states[-1].library, "accepted") == ["check what weigh0 says 0.2"]


async def test_where_every_play_fails_an_update_ends(block: Sequence[EpisodeRecord]) -> None:
    healthy = learner(texts(), Planted(), share=0.2)
    await healthy.update(block, {})
    assert racing(healthy.states[-1])
    arena = Failing(1.0)
    for states in (None, healthy.states):
        subject = learner(texts(), arena, states)
        await subject.update(block, {})
        assert not rules(subject.states[-1].library, "accepted")
    assert len(arena.seen) < 2000


async def test_a_block_of_failed_episodes_teaches_nothing() -> None:
    subject = learner(texts(0.2), Planted())
    assert subject.power is None
    *_, note = await subject.update([], {})
    assert "nothing to contrast" in note
    assert str(subject.power).startswith("no change of a prompt was tried on dev")


async def test_a_gain_enters_the_prompt_and_a_loss_does_not(block: Sequence[EpisodeRecord]) -> None:
    subject = learner(texts(-0.2, 0.2), Planted())
    for _ in range(6):
        await subject.update(block, {})
    library = subject.states[-1].library
    (text,) = rules(library, "accepted")
    assert planted(text) == 0.2
    (winner,) = [b for b in library.behaviors if b.text == text]
    assert winner.evidence is not None
    assert winner.evidence.e_value >= 1 / winner.evidence.level
    assert winner.evidence.low > 0
    assert winner.evidence.episodes
    notes = {b.note for b in library.behaviors if b.status == "rejected"}
    assert any(re.fullmatch(r"too little to win, after \d+ pairs", note) for note in notes)
    assert library.prompt(winner.agent, "p").endswith(f"- {text}")


async def test_a_race_pauses_and_goes_on_where_it_stood(block: Sequence[EpisodeRecord]) -> None:
    subject = learner(texts(0.05), Planted(), share=0.2)
    await subject.update(block, {})
    first = next(one for one in subject.states[-1].race.entrants if one.gains)
    await subject.update(block, {})
    later = subject.states[-1].race.entrants
    (second,) = [one for one in later if one.behavior == first.behavior]
    assert second.gains[: len(first.gains)] == first.gains
    assert len(second.gains) > len(first.gains)


async def test_an_update_with_too_few_calls_says_that_it_can_show_no_gain(
    block: Sequence[EpisodeRecord],
) -> None:
    found = await learner(texts(), Planted(), share=0.001).update(block, {})
    assert any("they can't show any gain; a larger budget" in note for note in found)
    assert (
        str(Power(pairs=0.4, calls=2, gain=0.9)) == "0 pairs on dev (2 calls) can't find any gain"
    )


async def test_all_candidates_of_all_agents_race_at_once(block: Sequence[EpisodeRecord]) -> None:
    behaviors = tuple(
        Behavior(agent=role, text=f"{verb} it {0.2 * (place == 4)}")
        for place, (verb, role) in enumerate(zip(VERBS, ROLES * 2, strict=False))
    )
    library = Library(task="words", model="m", behaviors=behaviors)
    subject = learner(texts(), Planted(), [started(library)], share=5.0)
    await subject.update(block, {})
    after = {b.text: b for b in subject.states[-1].library.behaviors}
    assert after[behaviors[4].text].status == "accepted"
    evidence = [after[b.text].evidence for b in behaviors]
    assert all(each is not None and each.pairs >= 8 for each in evidence)
    calls = sum(each.calls for each in evidence if each)
    assert calls > 2 * subject.states[-1].calls, "pairs are shared"


async def test_no_more_rules_of_an_agent_than_fit_in_a_prompt_race_at_once(
    block: Sequence[EpisodeRecord],
) -> None:
    many = tuple(Behavior(agent="writer", text=text) for text in [*texts()][:12])
    library = Library(task="words", model="m", behaviors=many)
    arena = Planted()
    subject = learner(texts(), arena, [started(library)], share=0.5)
    await subject.update(block, {})
    assert 2 < arena.most_rules <= TOGETHER + 1, "and one example"


class Late(Planted):
    """Whose plays take drawn times; knows how many were under way at once."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.now_playing, self.most_playing = seed, 0, 0

    async def play(
        self, library: Library, problem: Problem, seed: int, still: Collection[str]
    ) -> Played:
        self.now_playing += 1
        self.most_playing = max(self.most_playing, self.now_playing)
        waits = random.Random(derive(self.seed, len(self.seen)))
        played = await super().play(library, problem, seed, still)
        await asyncio.sleep(waits.expovariate(1000.0))
        self.now_playing -= 1
        return played


async def test_what_a_race_finds_does_not_depend_on_which_play_ends_first(
    block: Sequence[EpisodeRecord],
) -> None:
    found = []
    for arena in (Planted(), Late(1), Late(2)):
        subject = learner(texts(0.1, -0.1, 0.05), arena, candidates=4)
        for _ in range(3):
            await subject.update(block, {})
        found.append(subject.states)
        if isinstance(arena, Late):
            assert arena.most_playing == 2 * BATCH * AHEAD
            assert arena.now_playing == 0, "all that was begun is told"
    assert found[0] == found[1] == found[2]


def test_new_rules_take_the_place_of_those_that_lead_for_one_batch_only() -> None:
    race, old, new = _old_and_new("rule", TOGETHER, 0.3)
    first = together_now(race, _library(old, new), 100.0, 4)
    assert {one.behavior for one in first} == {b.id for b in new}
    flying = {one.behavior: FIRST for one in first}
    second = together_now(race, _library(old, new), 100.0, 4, flying)
    assert {one.behavior for one in second} == {b.id for b in old}


@pytest.mark.parametrize("gain", [0.3, -0.1])
def test_an_example_that_leads_keeps_its_place_when_a_new_one_comes(gain: float) -> None:
    race, old, new = _old_and_new("example", 1, gain)
    (first,) = together_now(race, _library(old, new), 100.0, 4)
    assert first.behavior == (old if gain > 0 else new)[0].id


def _old_and_new(
    kind: Literal["rule", "example"], count: int, gain: float
) -> tuple[Race, list[Behavior], list[Behavior]]:
    """So many of which each has shown that gain, and as many new ones."""
    old, new = (
        [Behavior(agent="writer", kind=kind, text=text) for text in [*texts()][first:][:count]]
        for first in (0, TOGETHER)
    )
    seen = (Entrant(behavior=b.id, gains=(gain,) * FIRST) for b in old)
    return Race(pool=0.05, entrants=(*seen, *(Entrant(behavior=b.id) for b in new))), old, new


def _library(*behaviors: Sequence[Behavior]) -> Library:
    return Library(task="words", model="m", behaviors=tuple(b for some in behaviors for b in some))


def test_new_ones_that_can_only_play_alone_share_the_pairs_in_flight() -> None:
    new = [Behavior(agent="writer", kind="example", text=text) for text in texts()][:3]
    library = Library(task="words", model="m", behaviors=tuple(new))
    race = Race(pool=0.05, entrants=tuple(Entrant(behavior=b.id) for b in new))
    flying = Counter[str]()
    for _ in range(6):
        (one,) = together_now(race, library, 100.0, 4, flying)
        flying[one.behavior] += BATCH
    assert set(flying.values()) == {2 * BATCH}


async def test_an_example_that_helps_wins_although_each_update_brings_others(
    block: Sequence[EpisodeRecord],
) -> None:
    """Only one at a time stands in a prompt."""
    won = [await _wins(0.1, block, seed) for seed in range(4)]
    assert sum(won) >= 3


async def _wins(gain: float, block: Sequence[EpisodeRecord], seed: int) -> bool:
    """Whether it is accepted, after four updates with three examples each."""
    drawn = texts(gain)
    states = [started(Library(task="words", model="m"))]
    for _ in range(4):
        new = (Behavior(agent="writer", kind="example", text=next(drawn)) for _ in range(3))
        library = states[-1].library
        for behavior in new:
            library = library.put(behavior)
        states[-1] = states[-1].model_copy(update={"library": library})
        subject = learner(
            texts(), Planted(), states, seed=seed, share=1.2, propose=("feedback",), in_search=False
        )
        await subject.update(block, {})
        states = subject.states
    (best,) = (b for b in states[-1].library.behaviors if b.text.endswith(f" {gain}"))
    return best.status == "accepted"


def test_coins_are_fair_and_independent() -> None:
    tosses = [coins(seed, ["a", "b"]) for seed in range(2000)]
    assert abs(sum(toss["a"] for toss in tosses)) < 150
    assert abs(sum(toss["a"] * toss["b"] for toss in tosses)) < 150
    assert coins(7, ["a", "b"])["a"] == coins(7, ["a"])["a"], "who else races changes no coin"


async def test_two_that_help_are_both_found_and_a_harmful_one_beside_them_is_not(
    block: Sequence[EpisodeRecord],
) -> None:
    two = tuple(Behavior(agent=role, text=GOOD) for role in ("writer", "reviewer"))
    library = Library(
        task="words", model="m", behaviors=(*two, Behavior(agent="refactorer", text=BAD))
    )
    subject = learner(texts(), Planted(), [started(library)], share=5.0)
    for _ in range(2):
        await subject.update(block, {})
    after = {b.id: b.status for b in subject.states[-1].library.behaviors}
    assert [after[b.id] for b in two] == ["accepted", "accepted"]
    assert BAD not in rules(subject.states[-1].library, "accepted")


async def beside(seed: int, *found: Behavior) -> list[str]:
    """What the writer has after four updates that begin with these behaviours, and find no more."""
    state = started(Library(task="words", model="m", behaviors=found))
    subject = learner(texts(), Planted(), [state], seed=seed, share=3.0)
    for _ in range(4):
        await subject.update([episode_of([]).model_copy(update={"calls": 200})], {})
    return sorted(b.text for b in subject.states[-1].library.accepted("writer"))


async def test_in_a_full_prompt_none_takes_the_place_of_a_better_one() -> None:
    better = [f"sort {word} by their date 0.08" for word in ("lists", "names", "files")]
    worse = [f"check {word} for gaps 0.06" for word in ("tables", "charts")]
    accepted = [Behavior(agent="writer", text=one, status="accepted") for one in better]
    new = [Behavior(agent="writer", text=one) for one in worse]
    found = [await beside(seed, *accepted, *new) for seed in range(6)]
    assert sum(one == sorted(better) for one in found) >= 5


async def test_what_a_candidate_would_replace_is_not_retested_beside_it() -> None:
    prompt = Behavior(agent="writer", kind="prompt", text="You write.", status="accepted")
    rule = Behavior(agent="writer", text="read every line", status="accepted")
    rival = Behavior(agent="writer", kind="prompt", text="You only sing.")
    for found, retested in (((prompt, rule), prompt), ((prompt, rule, rival), rule)):
        state = started(Library(task="words", model="m", behaviors=found))
        subject = learner(texts(), Failing(1.0), [state], share=1.0)
        await subject.update([episode_of([]).model_copy(update={"calls": 20})], {})
        race = subject.states[-1].race
        assert [one.behavior for one in race.entrants if one.kind == "retest"] == [retested.id]


async def test_who_would_replace_others_than_before_begins_anew(
    block: Sequence[EpisodeRecord],
) -> None:
    first = Behavior(agent="writer", kind="prompt", text="check what you write 0.1", status="trial")
    other = Behavior(
        agent="writer", kind="prompt", text="trace your own steps 0.06", status="trial"
    )
    library = Library(task="words", model="m", behaviors=(first, other))
    won = Entrant(behavior=first.id, wealth=(0.0, 0.0, 1.0), borrowed=0.01)
    near = Entrant(behavior=other.id, wealth=(0.0, 0.0, 0.9), borrowed=0.01, gains=(0.5,) * 9)
    state = State(library=library, race=Race(entrants=(won, near)), draws=7)
    subject = learner(texts(*[-0.3] * 9), Failing(1.0), [state], share=1.0)
    await subject.update(block, {})
    assert [b.text for b in subject.states[-1].library.accepted("writer")] == [first.text]
    (found,) = [one for one in subject.states[-1].race.candidates if one.behavior == other.id]
    assert (found.gains, found.since) == ((), 7)
    assert 0.01 <= found.worth <= found.borrowed


async def test_a_state_of_a_release_without_races_goes_on(block: Sequence[EpisodeRecord]) -> None:
    tried = Behavior(agent="writer", text=GOOD, status="trial", evidence=WON)
    library = Library(task="words", model="m", behaviors=(tried,))
    old = {"library": library.model_dump(mode="json"), "trial": None, "rejections": 1, "draws": 9}
    state = State.read(old, 0.05)
    assert state.race.pool == 0.025, "0.025 went to the trial that was lost"
    assert state.draws == 9
    assert [b.status for b in state.library.behaviors] == ["candidate"]
    subject = learner(texts(), Planted(), [started(library), state], share=5.0)
    await subject.update(block, {})
    assert rules(subject.states[-1].library, "accepted") == [GOOD]
    again = State.read(subject.states[-1].model_dump(mode="json"), 0.05)
    assert again == subject.states[-1]


async def test_what_an_update_spares_a_later_one_spends() -> None:
    harmful = Behavior(agent="writer", text=BAD)
    library = Library(task="words", model="m", behaviors=(harmful,))
    spared = started(library).model_copy(update={"spare": 500.0})
    subject = learner(texts(), Planted(), [spared])
    await subject.update([], {})
    state = subject.states[-1]
    assert racing(state) == []
    assert 0 < state.calls < 500
    assert state.spare == 500.0 - state.calls


async def test_no_dev_draw_is_used_for_two_comparisons(block: Sequence[EpisodeRecord]) -> None:
    arena = Planted()
    subject = learner(texts(0.001, 0.002), arena, share=0.5)
    for _ in range(4):
        await subject.update(block, {})
    state = subject.states[-1]
    assert len({seed for seed, _ in arena.seen}) == state.draws
    assert {problem for _, problem in arena.seen} == {problem.id for problem in DEV}


async def test_an_update_spends_its_share_and_no_more(
    block: Sequence[EpisodeRecord],
) -> None:
    subject = learner(texts(0.01), Planted(), share=0.5)
    await subject.update(block, {})
    state = subject.states[-1]
    allowed = 0.5 * sum(record.calls for record in block)
    assert allowed - 8 <= state.calls <= allowed + 8, "a pair takes 4 to 6 calls"
    assert all(one.usd == pytest.approx(one.calls * 0.25) for one in state.race.entrants)
    assert max(one.calls for one in state.race.entrants) == state.calls


async def test_auto_spends_no_more_than_three_times_the_search(
    block: Sequence[EpisodeRecord],
) -> None:
    searched = sum(record.calls for record in block)
    subject = learner(texts(0.001, 0.001, 0.001), Planted())
    for _ in range(3):
        await subject.update(block, {})
    assert searched < subject.states[-1].calls <= 3 * 3 * searched + 8


async def test_a_state_from_the_journal_goes_on_as_the_one_in_memory(
    block: Sequence[EpisodeRecord],
) -> None:
    written = [*texts(0.01, 0.02, 0.03)]
    whole = learner(iter(written), Planted(), share=0.4)
    for _ in range(3):
        await whole.update(block, {})
    first = learner(iter(written), Planted(), share=0.4)
    await first.update(block, {})
    plain = json.loads(json.dumps([state.model_dump(mode="json") for state in first.states]))
    asked = sum(b.kind == "rule" for b in first.states[-1].library.behaviors)
    states = [State.model_validate(state) for state in plain]
    second = learner(iter(written[asked:]), Planted(), states, share=0.4)
    for _ in range(2):
        await second.update(block, {})
    assert second.states == whole.states


async def test_what_stopped_helping_is_retired(block: Sequence[EpisodeRecord]) -> None:
    accepted = Behavior(agent="writer", text=GOOD, status="accepted", evidence=WON)
    library = Library(task="words", model="m", behaviors=(accepted,))
    arena = Planted({GOOD: -0.2})
    subject = learner(texts(*[-0.3] * 9), arena, [started(library)], share=5.0)
    for _ in range(4):
        await subject.update(block, {})
    (found,) = [b for b in subject.states[-1].library.behaviors if b.text == GOOD]
    assert found.status == "retired"
    assert found.retest is not None
    assert found.retest.lift < -0.1
    assert found.note == "clear loss"
    assert found.evidence == WON, "what it was accepted for stays on record"


async def test_what_still_helps_stays(block: Sequence[EpisodeRecord]) -> None:
    accepted = Behavior(agent="writer", text=GOOD, status="accepted")
    library = Library(task="words", model="m", behaviors=(accepted,))
    subject = learner(texts(*[-0.3] * 9), Planted(), [started(library)], share=5.0)
    for _ in range(4):
        await subject.update(block, {})
    assert rules(subject.states[-1].library, "accepted") == [GOOD]


async def test_a_transferred_library_is_tested_before_it_is_used(
    block: Sequence[EpisodeRecord],
) -> None:
    good = Behavior(agent="writer", text=GOOD, status="accepted")
    bad = Behavior(agent="reviewer", text=BAD, status="accepted")
    other = Library(task="other", model="m", behaviors=(good, bad))
    moved = other.transferred("words", "m")
    assert not any(moved.accepted(role) for role in ROLES)
    subject = learner(texts(*[-0.3] * 9), Planted(), [started(moved)], share=2.0)
    for _ in range(2):
        await subject.update(block, {})
    assert rules(subject.states[-1].library, "accepted") == [GOOD]


async def test_an_update_without_calls_left_writes_no_evidence(
    block: Sequence[EpisodeRecord],
) -> None:
    accepted = Behavior(agent="writer", text=GOOD, status="accepted", evidence=WON)
    library = Library(task="words", model="m", behaviors=(accepted,))
    subject = learner(texts(*[-0.3] * 9), Planted(), [started(library)], share=0.01)
    await subject.update(block, {})
    found = subject.states[-1].library.find(accepted.id)
    assert found is not None
    assert found.evidence == WON
    assert found.retest is None


def test_a_library_that_another_run_starts_from_brings_no_open_trial_and_no_dates() -> None:
    dated = WON.model_copy(update={"update": 40})
    behaviors = (
        Behavior(agent="writer", text=GOOD, status="accepted", evidence=dated, born=9),
        Behavior(agent="writer", text=BAD, status="trial", evidence=dated, born=39),
    )
    adopted = Library(task="t", model="m", update=40, behaviors=behaviors).adopted()
    assert adopted.update == 0
    good, bad = (adopted.find(b.id) for b in behaviors)
    assert good is not None
    assert bad is not None
    assert (good.status, good.evidence, good.tested, good.born) == ("accepted", WON, 0, 0)
    assert (bad.status, bad.evidence) == ("candidate", None)


def test_another_run_knows_what_problems_a_behaviour_was_made_from() -> None:
    dated = WON.model_copy(update={"update": 40, "episodes": (7,), "problems": ("train-1",)})
    open_trial = Behavior(agent="writer", text=BAD, status="trial", evidence=dated)
    accepted = Behavior(agent="writer", text=GOOD, status="accepted", evidence=dated)
    library = Library(task="t", model="m", update=40, behaviors=(open_trial, accepted))
    source = Evidence(problems=("train-1",))
    assert library.adopted().behaviors[1].evidence == source
    (moved,) = library.transferred("t", "another").behaviors
    assert (moved.status, moved.evidence) == ("candidate", source)
    (moved,) = library.transferred("another", "m").behaviors
    assert moved.evidence is None


def test_arms_pay_once_for_what_they_ask_alike() -> None:
    library = Library(task="words", model="m")
    changed = library.accept(Behavior(agent="refactorer", text=GOOD), 3)
    arms = [
        [Played(0.0, tuple(turn(role, each.prompt(role, "p")) for role in ROLES))]
        for each in (library, changed)
    ]
    differ, same, nothing = [*arms[0], *arms[1]], [*arms[0], *arms[0]], frozenset[int]()
    assert cost(["a"], [differ], ROLES, nothing) == (4, 1.0, nothing)
    assert cost(["a"], [same], ROLES, nothing) == (3, 0.75, nothing)
    assert cost(["a", "a"], [same] * 2, ROLES, nothing) == (6, 1.5, nothing)


def test_what_is_said_before_all_that_races_is_paid_once_in_a_run() -> None:
    library = Library(task="words", model="m")
    changed = library.accept(Behavior(agent="refactorer", text=GOOD), 3)
    pair = [
        Played(0.0, tuple(turn(role, each.prompt(role, "p")) for role in ROLES))
        for each in (library, changed)
    ]
    first = ROLES.index("refactorer")
    calls, usd, known = cost(["a", "a", "b"], [pair] * 3, ["refactorer"], frozenset())
    own = 3 * 2 * (len(ROLES) - first)
    assert (calls, usd, len(known)) == (2 * first + own, (2 * first + own) / 4, 2 * first)
    assert cost(["a", "b"], [pair] * 2, ["refactorer"], known)[0] == 2 * own // 3


def searched(record: EpisodeRecord, trial: str, gain: float) -> EpisodeRecord:
    """The episode, whose last move's samples have been drawn with that behaviour in turn and earned
    so much more with it."""
    ends = [leaf.id for leaf in record.leaves()]
    scores = {id: 0.5 + (gain if place % 2 else -gain) / 2 for place, id in enumerate(ends)}
    nodes = [
        node.model_copy(
            update={"score": Score(parts=(Part(name="quality", value=scores[node.id]),))}
        )
        if node.id in scores
        else node
        for node in record.nodes
    ]
    last = next(group for group in record.groups if set(group.children) <= set(ends))
    drawn = tuple(place % 2 == 1 for place in range(len(ends)))
    tried = (Trial(agent="refactorer", behavior=trial, drawn=drawn),)
    group = last.model_copy(update={"children": tuple(ends), "trials": tried})
    return record.model_copy(update={"nodes": tuple(nodes), "groups": (group,)})


async def test_what_the_search_showed_of_a_candidate_counts_in_its_race(
    block: Sequence[EpisodeRecord],
) -> None:
    subject = learner(texts(0.0), Planted(), share=0.1)
    await subject.update(block, {})
    (one, *_) = subject.states[-1].race.candidates
    (chosen, *_) = subject.tried(1, 7)
    assert chosen.id in racing(subject.states[-1])
    assert subject.tried(1, 7) == subject.tried(1, 7)
    new = [record.model_copy(update={"problem": f"new-{record.problem}"}) for record in block]
    await subject.update([searched(record, one.behavior, 0.3) for record in new], {})
    found = subject.states[-1].library.find(one.behavior)
    assert found is not None
    assert found.evidence is not None
    assert found.evidence.pairs >= len(one.gains) + len(block)
    assert found.evidence.lift > 0.1
    (source, *_) = found.evidence.problems
    old = [searched(record, one.behavior, 0.3) for record in block if record.problem == source]
    before = found.evidence.pairs
    await subject.update(old, {})
    after = subject.states[-1].library.find(one.behavior)
    assert after is not None
    assert after.evidence is not None
    assert after.evidence.pairs - before < 8, "nothing is shown on the problem that it comes from"


async def test_who_has_won_in_the_search_loses_it_to_no_later_episode(
    block: Sequence[EpisodeRecord],
) -> None:
    good = Behavior(agent="writer", text=GOOD, status="trial")
    library = Library(task="words", model="m", behaviors=(good,))
    near = Entrant(behavior=good.id, wealth=(0.0, 0.0, 0.95), borrowed=0.01)
    state = State(library=library, race=Race(entrants=(near,)))
    subject = learner(texts(), Failing(1.0), [state], share=1.0)
    await subject.update([searched(block[0], good.id, gain) for gain in (0.9, -0.9)], {})
    assert [b.text for b in subject.states[-1].library.accepted("writer")] == [GOOD]


async def test_a_bet_on_what_episodes_show_knows_nothing_of_what_they_took(
    block: Sequence[EpisodeRecord],
) -> None:
    async def wealth(calls: int) -> float:
        subject = learner(texts(0.0), Planted(), share=0.1)
        await subject.update(block, {})
        first, state = subject.states
        id = state.race.candidates[0].behavior
        alone = state.model_copy(update={"race": state.race.model_copy(update={"pool": 0.0})})
        last = searched(block[0], id, 0.2).model_copy(update={"problem": "new", "calls": calls})
        subject = learner(texts(0.0), Failing(1.0), [first, alone], share=1.0)  # no more pairs
        await subject.update([last], {})
        (found,) = [one for one in subject.states[-1].race.candidates if one.behavior == id]
        return found.worth

    assert await wealth(20) == await wealth(300)


def test_gains_in_the_search_are_within_a_state_or_between_those_of_one_sample(
    block: Sequence[EpisodeRecord],
) -> None:
    record = searched(block[0], "x", 0.2)
    ((tried, gain),) = tried_gains(record).items()
    assert tried == "x"
    assert gain == pytest.approx(0.2)
    (group,) = record.groups
    single = [
        group.model_copy(
            update={
                "children": (child,),
                "trials": (group.trials[0].model_copy(update={"drawn": (drawn,)}),),
            }
        )
        for child, drawn in zip(group.children, group.trials[0].drawn, strict=True)
    ]
    ((tried, gain),) = tried_gains(record.model_copy(update={"groups": tuple(single)})).items()
    assert tried == "x"
    assert gain == pytest.approx(0.2)
    assert tried_gains(record.model_copy(update={"groups": tuple(single[:1])})) == {}
    assert tried_gains(block[0]) == {}


def episode_of(gains: Sequence[float]) -> EpisodeRecord:
    """An episode whose last move has a state per gain, with one sample of each arm."""
    root, nodes, groups = node("0", 0.0), list[NodeRecord](), list[GroupRecord]()
    for state, gain in enumerate(gains):
        ids = (f"0.{state}.0", f"0.{state}.1")
        nodes += [
            node(f"0.{state}", 0.0),
            node(ids[0], 0.5 - gain / 2),
            node(ids[1], 0.5 + gain / 2),
        ]
        trial = Trial(agent="writer", behavior="x", drawn=(False, True))
        groups.append(
            GroupRecord(
                parent=f"0.{state}",
                agents=("writer",),
                children=ids,
                source="leaf",
                values=(0.5, 0.5),
                advantages=(0.0, 0.0),
                trials=(trial,),
            )
        )
    return EpisodeRecord(
        episode=0,
        problem="p",
        split="train",
        seed=0,
        best="0.0.0",
        reward=0.5,
        mean_leaf_reward=0.5,
        calls=0,
        usd=0.0,
        input_tokens=0,
        output_tokens=0,
        nodes=(root, *nodes),
        groups=tuple(groups),
    )


def node(id: str, value: float) -> NodeRecord:
    score = Score(parts=(Part(name="reward", value=value),))
    parent = id.rpartition(".")[0] or None
    return NodeRecord(
        id=id, parent=parent, turns=(), value=value, source="task", survived=True, score=score
    )


def test_states_of_one_problem_are_one_gain_so_that_a_bettor_can_not_win_by_their_likeness() -> (
    None
):
    # By problem it adds or costs 30 points in all eight states: nothing in the mean.
    def wins(seed: int) -> bool:
        rng, entrant = random.Random(seed), Entrant(behavior="x").lent(0.05)
        for _ in range(20):
            record = episode_of([rng.choice((0.3, -0.3))] * 8)
            for gain in tried_gains(record).values():
                entrant = entrant.seen(gain, 100.0)
                if entrant.worth >= 1.0:
                    return True
        return False

    assert sum(map(wins, range(100))) <= 12, "of 100 at a level of 5 %"


async def test_what_is_spent_on_dev_leaves_the_episodes_to_come_their_money(
    block: Sequence[EpisodeRecord],
) -> None:
    usd = sum(record.usd for record in block)
    paid = [record.model_copy(update={"usd": 1.0}) for record in block] if not usd else block
    searched = sum(record.usd for record in paid)
    budget = SIDE_COSTS * 6 * searched + 30.0  # a play on dev costs 0.75
    subject = learner(texts(0.01), Planted(), budget=budget)
    free = learner(texts(0.01), Planted())
    for _ in range(6):
        await subject.update(paid, {})
        await free.update(paid, {})
    assert 15.0 < subject.states[-1].usd <= 30.0 + 16 * 0.75
    assert free.states[-1].usd > 2 * subject.states[-1].usd
    broke = learner(texts(0.01), Planted(), budget=0.01)
    await broke.update(paid, {})
    assert not broke.states[-1].library.behaviors, "what can't be tested is not paid for"
    asked = learner(texts(0.01), Planted(), budget=budget, share=1.0)
    await asked.update(paid, {})
    assert asked.states[-1].usd > 30.0 / 6, "a share that the user names is kept"
