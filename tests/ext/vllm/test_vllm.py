"""Drawing from a vLLM server: the same answers as from the weights here, reloads, refusals, and
runs that learn from them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import ne
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.model import Base
from orchestry.backends.local.sampler import Sampler
from orchestry.core.errors import ConfigError, LearnError, ProviderError, StoreError
from orchestry.engine.run import prepare, resume
from orchestry.ext.vllm.vllm import VllmSampler
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    EVERY,
    adapters,
    config,
    learned,
    surprise,
    trainer,
    turns,
)
from tests.backends.local.teams import team
from tests.backends.local.tiny import tiny_model, tiny_tokenizer
from tests.ext.vllm.vllmloopback import (
    SERVED,
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


@pytest.fixture
def two() -> tuple[Base, Adapters]:
    return team()


@pytest.fixture
def server() -> Iterator[Vllm]:
    with vllm() as state:
        yield state


def test_answers_are_those_of_the_same_weights_drawn_here(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    """Every agent, the bare base, temperatures, lengths, end tokens and stop strings."""
    asked = [
        ask(0, 5, (1, 2)),
        ask(1, 5, (1, 2), temperature=1.3, top_p=1.0, max_tokens=40),
        ask(-1, 30, (3, 4), max_tokens=1),
        ask(0, 30, (3, 2**62), temperature=0.0),
        ask(1, 7, (1, 15), temperature=3.0, top_p=1.0, max_tokens=20),
        ask(0, 7, (5, 6), temperature=1.5, stop=("never", *"abcdefgh")),
        ask(1, 9, (7, 8), temperature=1.5, top_k=3),
    ]
    expected = Sampler(*two).draw(asked, 2)
    assert {drawn.stop for group in expected for drawn in group} == {"end", "stop", "length"}
    assert_same(published(two, server, tmp_path).draw(asked, 2), expected)


def test_a_server_draws_with_other_targets_and_rslora(server: Vllm, tmp_path: Path) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    options: dict[str, Any] = {"rank": 4, "dropout": 0.0, "targets": "all-linear", "rslora": True}
    adapters = Adapters(base, ["helper", "main"], **options)
    with torch.no_grad():
        for weight in adapters.parameters():
            weight.add_(torch.ones_like(weight), alpha=0.02)
    asked = [ask(0, 5, (1, 2)), ask(1, 7, (1, 15))]
    expected = Sampler(base, adapters).draw(asked, 2)
    assert_same(published((base, adapters), server, tmp_path).draw(asked, 2), expected)


def test_scoring_that_does_not_fit_is_done_in_smaller_parts(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: more than one prompt with its answers is too much."""

    def small(base: Base, adapters: Adapters, groups: Sequence[Packed], t: float) -> list[Any]:
        if len(groups) > 1:
            raise torch.OutOfMemoryError("planted")
        return completion_logprobs(base, adapters, groups, t)

    said = list[str]()
    asked = [ask(0, length, (1, 2)) for length in (30, 40, 50)]
    expected = Sampler(*two).draw(asked, 2)
    monkeypatch.setattr("orchestry.ext.vllm.vllm.completion_logprobs", small)
    made = published(two, server, tmp_path, micro_tokens=256, warn=said.append)
    assert_same(made.draw(asked, 2), expected)
    assert said[0] == "out of memory: it begins again with learn.micro_tokens=128"


def test_recorded_logprobs_are_before_top_p_whatever_the_server_gives(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    asked = [ask(0, 5, tuple(range(8)), top_p=0.5)]
    expected = Sampler(*two).draw(asked, 8)
    assert_same(published(two, server, tmp_path).draw(asked, 8), expected)


def test_fresh_adapters_are_the_base_itself(server: Vllm) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    fresh = base, Adapters(base, ["helper", "main"], rank=4)
    assert_same(sampler(fresh, server).draw([ask()], 1), Sampler(*fresh).draw([ask()], 1))
    assert {body["model"] for body in server.bodies("/v1/completions")} == {SERVED}
    assert not server.adapters


def test_an_update_is_loaded_under_a_new_name_and_the_one_before_goes(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    made = published(two, server, tmp_path / "1")
    [[before]] = made.draw([ask(1)], 1)
    names = set(server.adapters)
    with torch.no_grad():
        for weight in two[1].parameters():
            weight.mul_(1.5)
    two[1].save(tmp_path / "2")
    made.publish(tmp_path / "2")
    [[after]] = made.draw([ask(1)], 1)
    assert len(server.adapters) == 2
    assert not names & set(server.adapters)
    assert {name.partition("-")[0] for name in server.adapters} == {"helper", "main"}
    assert_same([[after]], Sampler(*two).draw([ask(1)], 1))
    assert after.ids != before.ids


def test_agents_take_the_adapters_that_are_named_for_them_or_the_base(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    """As of a team with other roles: nobody's for the first, and the first one's for the second."""
    two[1].save(tmp_path)
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    worn = Adapters(base, ["helper", "main"], rank=two[1].rank, alpha=two[1].alpha)
    worn.load(tmp_path, names=[None, "helper"])
    made = sampler((base, worn), server)
    made.publish(tmp_path, [None, "helper"])
    asked = [ask(0, 5, (1, 2)), ask(1, 5, (1, 2))]
    assert_same(made.draw(asked, 2), Sampler(base, worn).draw(asked, 2))
    models = [body["model"] for body in server.bodies("/v1/completions")]
    assert {model.partition("-")[0] for model in models} == {SERVED.partition("-")[0], "helper"}


def test_the_same_folder_with_other_contents_has_another_name(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    """As after a resume, which makes an update anew that was not counted."""
    made = published(two, server, tmp_path)
    made.draw([ask(0)], 1)
    names = set(server.adapters)
    with torch.no_grad():
        two[1].parameters(0)[0].mul_(2)
    two[1].save(tmp_path)
    for _ in range(2):
        made.publish(tmp_path)
        assert_same(made.draw([ask(0)], 1), Sampler(*two).draw([ask(0)], 1))
        assert len(server.adapters) == 2
    assert len(names & set(server.adapters)) == 1  # the other agent's did not change
    assert len(server.bodies("/v1/load_lora_adapter")) == 3


def test_agents_that_share_an_adapter_load_it_once(server: Vllm, tmp_path: Path) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    shared = base, Adapters(base, ["helper", "main"], rank=4, shared=True)
    with torch.no_grad():
        for weight in shared[1].parameters():
            weight.add_(0.1)
    asked = [ask(0), ask(1, 7)]
    made = published(shared, server, tmp_path)
    assert_same(made.draw(asked, 1), Sampler(*shared).draw(asked, 1))
    assert len(server.bodies("/v1/load_lora_adapter")) == 1


def test_a_server_that_was_started_anew_gets_its_adapters_back(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    made = published(two, server, tmp_path)
    made.draw([ask(1)], 1)
    server.adapters.clear()
    assert_same(made.draw([ask(1)], 1), Sampler(*two).draw([ask(1)], 1))


def test_many_requests_are_in_flight_and_answers_keep_their_order(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    asked = [ask(index % 2, 3 + index, (index, index + 1), max_tokens=3) for index in range(12)]
    made = published(two, server, tmp_path, in_flight=5, micro_tokens=64)
    assert_same(made.draw(asked, 2), Sampler(*two).draw(asked, 2))


def test_nothing_asked_nothing_drawn(two: tuple[Base, Adapters], server: Vllm) -> None:
    assert sampler(two, server).draw([], 4) == []
    assert sampler(two, server).draw([ask(seeds=())], 0) == [[]]
    with pytest.raises(ValueError, match="a seed for each of its 2 samples"):
        sampler(two, server).draw([ask()], 2)


def test_a_broken_connection_is_tried_again_a_few_times(
    two: tuple[Base, Adapters], server: Vllm
) -> None:
    waits = Waits()
    server.drop = 3
    made = VllmSampler(*two, [server.url], environ={}, sleep=waits)
    assert waits == [0.5, 1.0, 2.0]
    asked = len(server.requests)
    server.drop = 5
    message = "no vLLM server answers at http.*or correct learn"
    assert_one_line(ProviderError, message, lambda: made.draw([ask(-1)], 1))
    assert len(server.requests) == asked + 5


def test_the_key_is_vllms_own_variable(two: tuple[Base, Adapters]) -> None:
    with vllm(key="secret-secret") as state:
        VllmSampler(*two, [f"{state.url}/v1/"], environ={"VLLM_API_KEY": "secret-secret"})
        with pytest.raises(ProviderError, match=r"answered 401 .*set VLLM_API_KEY") as caught:
            sampler(two, state)
        assert "secret-secret" not in str(caught.value)


def test_no_server_gives_the_command_that_starts_one(two: tuple[Base, Adapters]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ProviderError) as caught:
        VllmSampler(*two, [url], environ={}, sleep=Waits())
    assert str(caught.value) == (
        f"no vLLM server answers at {url} (Connection refused): start it with "
        "`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve tiny --dtype float32 --enable-lora "
        "--max-lora-rank 8 --max-loras 2 --logprobs-mode processed_logprobs`, or correct "
        "learn.vllm_url"
    )


def test_a_server_that_takes_no_adapters_is_refused_at_once(two: tuple[Base, Adapters]) -> None:
    with vllm(updates=False) as state:
        message = "takes no adapters while it runs: start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING"
        assert_one_line(ConfigError, message, lambda: sampler(two, state))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": False}, r"\(LoRA is not enabled.*\): start it with .*--enable-lora"),
        ({"max_rank": 1}, r"LoRA rank 4 is greater than max_lora_rank 1.*--max-lora-rank 8"),
    ],
)
def test_a_server_that_takes_no_such_adapters(
    two: tuple[Base, Adapters], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with vllm(**settings) as state:
        made = published(two, state, tmp_path)
        assert_one_line(ProviderError, message, lambda: made.draw([ask()], 1))


def test_a_folder_that_the_server_does_not_see(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    made = published(two, server, tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    message = "can't read the adapter .*No adapter found.*a disk that it sees too"
    assert_one_line(ProviderError, message, lambda: made.draw([ask()], 1))
    assert_one_line(StoreError, "can't be read.*a copy", lambda: made.publish(tmp_path / "here"))


def test_a_shorter_context_than_asked_for(two: tuple[Base, Adapters]) -> None:
    with vllm(context=20) as state:
        made = sampler(two, state)
        message = "takes 20 tokens, and .* may have 21: start it with --max-model-len 21"
        assert_one_line(ProviderError, message, lambda: made.draw([ask(-1, 9)], 1))
        assert not state.bodies("/v1/completions")


def test_another_base_is_found_out_by_its_first_answers(two: tuple[Base, Adapters]) -> None:
    with vllm(seed=1) as state:
        message = r"serves /models/tiny, and .* not drawn by tiny .* off by [1-9]\.\d\d nats"
        asked = [ask(-1, 9, (1, 2))]
        assert_one_line(LearnError, message, lambda: sampler(two, state).draw(asked, 2))


def test_other_adapters_than_the_teams_are_found_out(
    two: tuple[Base, Adapters], server: Vllm, tmp_path: Path
) -> None:
    made = published(two, server, tmp_path)
    with torch.no_grad():
        for weight in two[1].parameters():
            weight.mul_(2)
    message = "not drawn by tiny with this run's adapters"
    assert_one_line(LearnError, message, lambda: made.draw([ask(0, 9, (1, 2))], 2))


def test_logprobs_of_another_mode_are_found_out(two: tuple[Base, Adapters]) -> None:
    with vllm(mode="raw_logprobs") as state:
        asked = [ask(-1, 9, (1, 2), temperature=0.3)]
        message = "log-probabilities are off by .*--logprobs-mode processed_logprobs"
        assert_one_line(LearnError, message, lambda: sampler(two, state).draw(asked, 2))


def _choice(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda answer: answer["choices"][0].update(changes)


def _cut(answer: dict[str, Any]) -> None:
    choice = answer["choices"][0]
    choice["token_ids"] = choice["token_ids"][:2]
    choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:2]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_choice(token_ids=None), r"\(choices.0.token_ids: .*vLLM 0.11 or newer"),
        (_choice(logprobs=None), r"\(choices.0.logprobs: "),
        (_choice(prompt_token_ids=[5, 6]), "other prompt tokens than it was sent"),
        (_choice(token_ids=[300] * 12), "token ids that tiny doesn't have"),
        (_choice(token_ids=[9]), "log-probabilities that are not one per token"),
        (_cut, "an answer of 2 tokens out of 12 that ends at no end token .*by 'length'"),
        (lambda answer: answer["choices"].clear(), "0 answers for one request"),
        (lambda answer: answer.clear(), r"\(choices: Field required\)"),
    ],
)
def test_answers_that_can_not_be(
    two: tuple[Base, Adapters], server: Vllm, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    server.spoil = spoil
    made = sampler(two, server)
    assert_one_line(ProviderError, message, lambda: made.draw([ask(-1)], 1))


def test_a_server_that_decodes_otherwise_is_followed_at_its_stop_strings(
    two: tuple[Base, Adapters], server: Vllm
) -> None:
    """It stopped at a string that these ids don't show; and it missed one, and went on."""
    prompt = ask(-1, 9, max_tokens=12)
    [[free]] = Sampler(*two).draw([prompt], 1)
    stop = next(letter for letter in free.text if letter.isascii())
    longer = replace(prompt, stop=("unseen",), max_tokens=13)

    def ended(answer: dict[str, Any]) -> None:
        _choice(finish_reason="stop", stop_reason="unseen")(answer)
        choice = answer["choices"][0]
        choice["token_ids"].pop()
        choice["logprobs"]["token_logprobs"].pop()

    server.spoil = ended
    [[drawn]] = sampler(two, server).draw([longer], 1)
    assert (drawn.ids, drawn.stop) == (free.ids, "stop")

    def went_on(answer: dict[str, Any]) -> None:
        own = server.logprobs(prompt, free, *_bare())
        answer["choices"][0].update(
            token_ids=list(free.ids), logprobs={"token_logprobs": own}, finish_reason="length"
        )

    server.spoil = went_on
    stopped = replace(prompt, stop=(stop,))
    assert_same(sampler(two, server).draw([stopped], 1), Sampler(*two).draw([stopped], 1))


def _bare() -> tuple[Base, Adapters]:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    return base, Adapters(base, ["none"])


def said(run: Run) -> list[tuple[str, str]]:
    return [(t.agent, t.completion.text) for episode in run.episodes for t in turns(episode)]


@pytest.mark.slow
def test_a_run_is_the_one_without_a_server(
    finished: Run, server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    """The server here draws as this process does, but for rounding: two tokens of all but the same
    probability may change places."""
    run = orchestry.train(config(model, tasks, f"learn.vllm_url={server.url}"), tmp_path / "run")
    half = len(said(run)) // 2
    assert said(run)[:half] == said(finished)[:half]
    first = "checkpoints/000004/"
    assert {name: saved for name, saved in adapters(run.folder).items() if first in name} == {
        name: saved for name, saved in adapters(finished.folder).items() if first in name
    }
    assert sum(map(ne, said(run), said(finished))) <= half // 10
    after = trainer(model, run.folder / "checkpoints" / "000004")
    assert surprise(after, run.episodes[EVERY]) < 1e-4
    models = [body["model"] for body in server.bodies("/v1/completions")]
    assert len(set(models)) == 1 + 2  # the base alone, then each agent's first update
    loaded = [body["lora_path"] for body in server.bodies("/v1/load_lora_adapter")]
    assert loaded == sorted(
        str(run.folder / "checkpoints" / "000004" / role) for role in ("left", "right")
    )


@pytest.mark.slow
def test_a_team_learns_what_its_reward_asks_for(
    server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("episodes=40", "learn.group_size=8", f"learn.vllm_url={server.url}")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    rewards = [episode.mean_leaf_reward for episode in run.episodes]
    assert fmean(rewards[-EVERY:]) - fmean(rewards[:EVERY]) > 0.4
    assert len(server.adapters) == 2


def test_a_server_that_fails_loses_nothing_and_a_resume_goes_on(
    server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    """It refuses adapters from the first update on; then it is started as it should be."""
    server.lora = False
    sets = ("episodes=4", "learn.every=2", "learn.group_size=2", f"learn.vllm_url={server.url}")
    with pytest.raises(ProviderError, match=r"LoRA is not enabled.*resume the run"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    stopped = load_run(tmp_path / "run")
    assert (len(learned(stopped)), len(stopped.episodes)) == (1, 2)
    server.lora = True
    run = resume(tmp_path / "run")
    assert (len(learned(run)), len(run.episodes)) == (2, 4)
    after = trainer(model, run.folder / "checkpoints" / "000002")
    assert surprise(after, run.episodes[2]) < 1e-4


def test_a_run_goes_on_from_adapters_of_another(
    finished: Run, server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    source = finished.folder / "checkpoints" / "000008"
    sets = (f"learn.from={source}", "episodes=1", f"learn.vllm_url={server.url}")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert surprise(trainer(model, source), run.episodes[0]) < 1e-4
    assert {Path(path).parent for path, _, _ in server.adapters.values()} == {source}


def test_no_server_is_found_out_before_anything_is_played(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    with vllm(updates=False) as state:
        settings = config(model, tasks, f"learn.vllm_url={state.url}")
        with pytest.raises(
            ConfigError, match=rf"at {re.escape(state.url)} takes no adapters .*{model}"
        ):
            orchestry.train(settings, tmp_path / "run")
    assert not load_run(tmp_path / "run").episodes


def test_one_server_serves_one_base(server: Vllm, model: str, tasks: Path, tmp_path: Path) -> None:
    from tests.backends.local.tiny import tiny_folder

    other = tiny_folder(tmp_path / "other", seed=1)
    sets = (f"agents.right.model={other}", f"learn.vllm_url={server.url}")
    with pytest.raises(ConfigError, match=r"server serves one base .*, found .*tiny, .*other"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")


def test_what_vllm_draws_is_not_called_deterministic(model: str, tasks: Path) -> None:
    with_server = config(model, tasks, "learn.vllm_url=http://127.0.0.1:1/v1/")
    assert prepare(config(model, tasks)).backend.provider.deterministic
    assert not prepare(with_server).backend.provider.deterministic


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://user:word@host", "http://host/v2"])
def test_a_wrong_address_is_refused(model: str, tasks: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"learn.vllm_url"):
        config(model, tasks, f"learn.vllm_url={url}")
