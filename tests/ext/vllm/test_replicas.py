"""Several vLLM servers that draw as one: the same answers as from one, whichever is gone."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.model import Base
from orchestry.backends.local.sampler import Prompt, Sampler
from orchestry.core.config import resolve, validate
from orchestry.core.errors import ConfigError, LearnError, ProviderError
from orchestry.core.learning import LearnConfig
from orchestry.engine.run import resume
from orchestry.ext.vllm.server import ATTEMPTS, Unanswered, VllmServer
from orchestry.store.run import Run, load_run
from tests.backends.letters import adapters, config, learned, turns
from tests.backends.local.teams import team
from tests.ext.vllm.vllmloopback import (
    Fault,
    Vllm,
    Waits,
    ask,
    assert_one_line,
    assert_same,
    published,
    sampler,
    vllm,
)

pytestmark = pytest.mark.usefixtures("one_thread")
PATH = "/v1/completions"
ASKED = [ask(index % 2, 3 + index, (index, index + 1), max_tokens=6) for index in range(6)]


@pytest.fixture
def two() -> tuple[Base, Adapters]:
    return team()


@pytest.fixture
def trio() -> Iterator[list[Vllm]]:
    with ExitStack() as stack:
        yield [stack.enter_context(vllm()) for _ in range(3)]


@pytest.fixture
def pair(trio: list[Vllm]) -> list[Vllm]:
    return trio[:2]


def again(state: Vllm, **settings: Any) -> Any:
    """Another server at the same address, as after a restart: without adapters."""
    return vllm(urlsplit(state.url).port or 0, **settings)


def counts(states: list[Vllm]) -> list[int]:
    """Answers that each server was asked for."""
    return [len(state.bodies(PATH)) for state in states]


def once(seen: Callable[[], bool]) -> Callable[[dict[str, Any]], None]:
    """Holds an answer back until something was seen."""

    def hold(answer: dict[str, Any]) -> None:
        for _ in range(3000):
            if seen():
                return
            Event().wait(0.01)
        raise AssertionError("waited for 30 s")

    return hold


def changed(two: tuple[Base, Adapters], folder: Path, factor: float) -> Path:
    """Other adapters, as after an update."""
    with torch.no_grad():
        for weight in two[1].parameters():
            weight.mul_(factor)
    two[1].save(folder)
    return folder


# --- drawing --------------------------------------------------------------------------------------


def test_answers_do_not_depend_on_how_many_draw(
    two: tuple[Base, Adapters], trio: list[Vllm], tmp_path: Path
) -> None:
    expected = Sampler(*two).draw(ASKED, 2)
    for number in (1, 2, 3):
        made = published(two, trio[:number], tmp_path)
        assert_same(made.draw(ASKED, 2), expected)
    assert min(counts(trio)) > 0


def test_every_server_has_the_adapters_of_now_alone(
    two: tuple[Base, Adapters], trio: list[Vllm], tmp_path: Path
) -> None:
    made = published(two, trio, tmp_path / "1")
    made.draw([ask(0)], 1)
    before = set(trio[0].adapters)
    made.publish(changed(two, tmp_path / "2", 1.5))
    assert_same(made.draw(ASKED, 2), Sampler(*two).draw(ASKED, 2))
    for state in trio:
        assert state.adapters.keys() == trio[0].adapters.keys()
        assert len(state.bodies("/v1/load_lora_adapter")) == 4
    assert len(trio[0].adapters) == 2
    assert not before & trio[0].adapters.keys()


def test_requests_at_the_same_time_are_dealt_out_evenly(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    """All twelve are held back until the last one has come."""
    for state in pair:
        state.spoil = once(lambda: sum(counts(pair)) == 12)
    published(two, pair, tmp_path, in_flight=6).draw(ASKED, 2)
    assert counts(pair) == [6, 6]


def test_a_busy_server_gets_nothing_while_another_is_free(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    """The first one holds its answer back until the other has been asked for the rest."""
    pair[0].spoil = once(lambda: len(pair[1].bodies(PATH)) == 11)
    published(two, pair, tmp_path, in_flight=1).draw(ASKED, 2)
    assert counts(pair) == [1, 11]


# --- servers that go and come ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_killed_while_it_draws_is_taken_out_and_comes_back(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    here, killed = pair
    expected, said = Sampler(*two).draw(ASKED, 2), list[str]()
    made = published(two, pair, tmp_path, warn=said.append)
    killed.spoil = lambda answer: killed.kill()
    assert_same(made.draw(ASKED, 2), expected)
    assert counts([here]) == [12]
    (warned,) = said
    assert warned.startswith(f"the vLLM server at {killed.url} stopped answering (Connection ")
    assert "the other 1 draw without it" in warned

    assert_same(made.draw(ASKED, 2), expected)
    assert len(said) == 1, "it is still gone, which was said"

    with again(killed) as back:
        assert_same(made.draw(ASKED, 2), expected)
        assert said[1:] == [f"the vLLM server at {killed.url} answers again and draws too"]
        assert back.adapters.keys() == here.adapters.keys()
        assert min(counts([back])) > 0


def test_one_of_three_that_a_proxy_says_is_down(
    two: tuple[Base, Adapters], trio: list[Vllm], tmp_path: Path
) -> None:
    said = list[str]()

    def down(answer: dict[str, Any]) -> None:
        raise Fault(503, "no upstream")

    trio[1].spoil = down
    made = published(two, trio, tmp_path, warn=said.append)
    assert_same(made.draw(ASKED, 2), Sampler(*two).draw(ASKED, 2))
    assert len(said) == 1
    assert f"{trio[1].url} stopped answering (503, no upstream): the other 2 draw" in said[0]


@pytest.mark.slow
def test_one_that_was_away_for_two_updates_loses_its_old_adapters(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    made = published(two, pair, tmp_path / "1")
    made.draw(ASKED, 2)
    pair[1].drop = 10**6
    for number in (2, 3):
        made.publish(changed(two, tmp_path / str(number), 1.2))
        made.draw([ask(0)], 1)
    pair[1].drop = 0
    assert_same(made.draw(ASKED, 2), Sampler(*two).draw(ASKED, 2))
    assert pair[1].adapters.keys() == pair[0].adapters.keys()
    assert len(pair[1].adapters) == 2


def test_one_that_is_gone_before_a_draw_is_asked_once_before_the_next(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    made = published(two, pair, tmp_path)
    pair[1].drop = 10**6
    tried = list[int]()
    for _ in range(3):
        before = len(pair[1].requests)
        made.draw([ask(0)], 1)
        tried.append(len(pair[1].requests) - before)
    assert tried == [ATTEMPTS, 1, 1]


@pytest.mark.slow
def test_one_that_hangs_is_waited_for_no_longer_than_one_alone(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    """Its attempts end by themselves; then it costs a glance before each draw."""
    free, said = Event(), list[str]()

    def hang(answer: dict[str, Any]) -> None:
        free.wait(60)

    made = published(two, pair, tmp_path, in_flight=1, patience_s=1.0, warn=said.append)
    try:
        pair[1].spoil = hang
        assert_same(made.draw(ASKED, 2), Sampler(*two).draw(ASKED, 2))
        assert counts(pair) == [12, ATTEMPTS]
        assert "stopped answering (timed out)" in said[0]
        made.draw([ask(0)], 1)
        assert [path for path, _ in pair[1].requests].count("/v1/models") == 1 + 1 + 1
    finally:
        pair[1].drop = 10**6  # nobody waits for these answers any more
        free.set()


def test_none_left_is_the_error_of_one_alone_and_all_may_come_back(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    said = list[str]()
    made = published(two, pair, tmp_path, warn=said.append)
    for state in pair:
        state.spoil = lambda answer, state=state: state.kill()  # type: ignore[misc]
    message = r"no vLLM server answers at http.*: start it with .*, or correct learn\.vllm_url"
    for _ in range(2):
        assert_one_line(ProviderError, message, lambda: made.draw(ASKED, 2))
    assert len(said) == 1, "the last one is no warning but the error"
    with again(pair[0]), again(pair[1]):
        assert_same(made.draw(ASKED, 2), Sampler(*two).draw(ASKED, 2))


# --- what is an error, and takes no server out ----------------------------------------------------


def test_at_the_start_each_has_to_answer(two: tuple[Base, Adapters], pair: list[Vllm]) -> None:
    pair[1].kill()
    message = rf"no vLLM server answers at {pair[1].url} "
    assert_one_line(ProviderError, message, lambda: sampler(two, pair))
    with again(pair[1], updates=False):
        message = rf"at {pair[1].url} takes no adapters while it runs"
        assert_one_line(ConfigError, message, lambda: sampler(two, pair))


@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_refusal_is_no_absence(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path, status: int
) -> None:
    said = list[str]()

    def refuse(answer: dict[str, Any]) -> None:
        raise Fault(status, "not this one")

    pair[1].spoil = refuse
    made = published(two, pair, tmp_path, warn=said.append)
    message = rf"the vLLM server at {pair[1].url} answered {status} \(not this one\)"
    assert_one_line(ProviderError, message, lambda: made.draw(ASKED, 2))
    assert not said


def test_an_answer_that_can_not_be_names_its_server(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    pair[1].spoil = lambda answer: answer["choices"][0].update(prompt_token_ids=[5])
    made = published(two, pair, tmp_path)
    message = rf"server at {pair[1].url} answered what can't be \(it read other prompt tokens"
    assert_one_line(ProviderError, message, lambda: made.draw(ASKED, 2))


def test_servers_of_different_models_are_refused(
    two: tuple[Base, Adapters], pair: list[Vllm], tmp_path: Path
) -> None:
    message = (
        rf"different models, found tiny-served \(/models/tiny\) at {pair[0].url}, "
        rf"tiny-served \(/models/other\) at {pair[1].url}: start each with `VLLM"
    )
    made = published(two, pair, tmp_path)
    pair[1].root = "/models/other"
    assert_one_line(ProviderError, message, lambda: sampler(two, pair))
    assert_one_line(ProviderError, message, lambda: made.draw(ASKED, 2))
    assert counts(pair) == [0, 0]


def test_other_weights_under_the_same_name_are_found_on_one_of_many(
    two: tuple[Base, Adapters], trio: list[Vllm]
) -> None:
    with vllm(seed=1) as other:
        for state in (*trio, other):
            state.spoil = once(lambda: sum(counts([*trio, other])) == 8)
        asked = [ask(-1, 9, tuple(range(8)))]
        made = sampler(two, [*trio, other])
        message = rf"the vLLM server at {other.url} serves /models/tiny, .* not drawn by tiny"
        assert_one_line(LearnError, message, lambda: made.draw(asked, 8))


def test_the_smallest_context_counts(two: tuple[Base, Adapters], pair: list[Vllm]) -> None:
    pair[1].context = 20
    made = sampler(two, pair)
    message = rf"server at {pair[1].url} takes 20 tokens, and .* may have 21"
    assert_one_line(ProviderError, message, lambda: made.draw([ask(-1, 9)], 1))
    assert counts(pair) == [0, 0]
    fits: list[Prompt] = [ask(-1, 8)]
    assert_same(made.draw(fits, 1), Sampler(*two).draw(fits, 1))


def test_the_own_limit_of_open_files_is_no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the system gives this process no further connection."""

    def full(*given: object, **options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    server = VllmServer("http://127.0.0.1:1", "vllm serve", {}, Waits())
    with pytest.raises(Unanswered):
        server.served()
    monkeypatch.setattr("socket.create_connection", full)
    with pytest.raises(ProviderError, match=r"too many open files .*ulimit -n 4096") as caught:
        server.served()
    assert not isinstance(caught.value, Unanswered)


# --- config ---------------------------------------------------------------------------------------

FIRST, SECOND = "http://a:8000", "https://b/v1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (f"learn.vllm_url={FIRST}", (FIRST,)),
        (f"learn.vllm_url={FIRST},{SECOND}", (FIRST, SECOND)),
        (f"learn.vllm_url={FIRST}, {SECOND}", (FIRST, SECOND)),
        (f"learn.vllm_url=[{FIRST}, {SECOND}]", (FIRST, SECOND)),
        ("learn.vllm_url=null", None),
    ],
)
def test_one_address_or_several(
    given: str, expected: tuple[str, ...] | None, tmp_path: Path
) -> None:
    found = resolve([], ["backend=local", given])
    assert found.learn.vllm_url == expected
    kept = tmp_path / "config.yaml"
    kept.write_text(f"learn: {{vllm_url: {list(expected) if expected else 'null'}}}")
    assert resolve([kept], ["backend=local"]).learn.vllm_url == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "a list with at least 1 item"),
        ("", "learn.vllm_url.0' is ''"),
        (f"{FIRST},", "learn.vllm_url.1' is ''"),
        ([FIRST, f"{FIRST}/v1/"], "name each server once"),
        ([FIRST, "b:8000"], "learn.vllm_url.1' is 'b:8000'"),
        ([f"{FIRST},{SECOND}"], "learn.vllm_url.0' is "),
        (f"{FIRST},http://me:secret@b", "has a user, password or query"),
        ([FIRST, "http://me:secret@b"], "has a user, password or query"),
    ],
)
def test_lists_that_are_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate({"backend": "local", "learn": {"vllm_url": given}})


def test_adapters_alone_are_served_by_several() -> None:
    with pytest.raises(ValueError, match=r"learn\.vllm_url=\('http://a:8000', "):
        LearnConfig.model_validate({"method": "full", "vllm_url": [FIRST, SECOND]})


# --- runs -----------------------------------------------------------------------------------------


def said(run: Run) -> list[tuple[str, str, Any]]:
    return [
        (turn.agent, turn.completion.text, turn.completion.tokens)
        for episode in run.episodes
        for turn in turns(episode)
    ]


@pytest.mark.slow
def test_a_run_that_loses_a_server_is_the_run_of_one(
    pair: list[Vllm], trio: list[Vllm], model: str, tasks: Path, tmp_path: Path
) -> None:
    """One is killed in the second update's episodes."""
    alone = orchestry.train(config(model, tasks, f"learn.vllm_url={trio[2].url}"), tmp_path / "one")

    def dies(answer: dict[str, Any]) -> None:
        if learned_so_far(tmp_path / "run"):
            pair[1].kill()

    pair[1].spoil = dies
    at = f"learn.vllm_url={pair[0].url},{pair[1].url}"
    run = orchestry.train(config(model, tasks, at), tmp_path / "run")
    assert said(run) == said(alone)
    assert adapters(run.folder) == adapters(alone.folder)
    assert 0 < counts(pair)[1] < counts(pair)[0]


def learned_so_far(folder: Path) -> bool:
    return (folder / "checkpoints" / "000004").is_dir()


@pytest.mark.slow
def test_a_run_whose_servers_are_all_gone_is_resumed_elsewhere(
    pair: list[Vllm], trio: list[Vllm], model: str, tasks: Path, tmp_path: Path
) -> None:
    for state in pair:
        state.spoil = lambda answer, state=state: state.kill()  # type: ignore[misc]
    sets = ("episodes=4", "learn.every=2", "learn.group_size=2")
    at = f"learn.vllm_url=[{pair[0].url}, {pair[1].url}]"
    with pytest.raises(ProviderError, match=r"no vLLM server answers"):
        orchestry.train(config(model, tasks, *sets, at), tmp_path / "run")
    assert not load_run(tmp_path / "run").episodes
    run = resume(tmp_path / "run", changes={"learn": {"vllm_url": trio[2].url}})
    assert (len(learned(run)), len(run.episodes)) == (2, 4)
