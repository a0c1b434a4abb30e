"""RunConfig: what wins over what, and how faults are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.config import RunConfig, resolve, validate
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import merge
from orchestry.core.types import Call
from orchestry.sandbox import open_sandbox

LEAST = ("wall_s=0.1", "memory_mb=64", "output_kb=1")


def test_flags_win_over_sets_over_files_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("search: {k_samples: 5, beam_width: 5, concurrency: 5}\nepisodes: 5\n")
    config = resolve(
        [file], ["search.beam_width=6", "search.concurrency=6"], {"search.concurrency": 7}
    )
    assert config.search.k_samples == 5
    assert config.search.beam_width == 6
    assert config.search.concurrency == 7
    assert config.seed == 0


def test_a_resolved_config_is_rerunnable(tmp_path: Path) -> None:
    config = resolve([], ["agents.writer.max_tokens=9", "prices.m.input=1", "prices.m.output=2"])
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert resolve([file]) == config


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("search.k_sample=3", "'search.k_sample': did you mean 'search.k_samples'"),
        ("agents.writer.modle=x", "did you mean 'agents.writer.model'"),
        ("prices.m.inputs=1", "did you mean 'prices.m.input'"),
        ("budgt.usd=3", "did you mean 'budget'"),
        ("episodes=zero", "'episodes' is 'zero'"),
        ("search.k_samples=0", "'search.k_samples' is 0: give a number >= 1 and <= 64"),
        ("provider.name=claude", "'provider.name' is 'claude'"),
        ("search.k_samples", "--set takes key=value"),
        ("episodes.x=1", "'episodes' is {'x': 1}: give a whole number"),
        ("judge=true", "'judge' is True: it holds keys, such as judge.enabled=true"),
        ("judge.provider=7", "'judge.provider' is 7: it holds keys, such as judge.provider.name"),
        ("provider=null", "'provider' is None: it holds keys, such as provider.name=auto"),
        ("agents=3", "it holds keys, such as agents.NAME.model=VALUE"),
        ("agents.writer=3", "it holds keys, such as agents.writer.model=VALUE"),
        ("weights=1", "it holds keys, such as weights.NAME=VALUE"),
        ("behaviors.alpha=.nan", "'behaviors.alpha' is nan: give a number > 0 and < 1"),
        ("agents.writer.max_tokens=0", "give a number >= 1 and <= 1000000"),
        ("search.k_samples=1.5", "'search.k_samples' is 1.5: give a whole number"),
        ("search.exploration=.nan", "give a number >= 0 and <= 1"),
        ("credit.share=2", "'credit.share' is 2: give a number <= 1"),
        ("prices.m.input=.inf", "'prices.m.input' is inf: give a finite number"),
        ("judge.enabled=maybe", "'judge.enabled' is 'maybe': give true or false"),
        ("search.strategy=fixed", "'fixed': it is called 'single' now: give 'single'"),
        ("search.strategy=[a]", "'search.strategy' is .'a'.: give 'beam', 'single'"),
        ("split=tst", "'split' is 'tst': give 'train', 'dev' or 'test'"),
        ("sampling.stop=x", "'sampling.stop' is 'x': give a list, such as .a, b."),
        ("behaviors.propose=[]", "'behaviors.propose' is ..: give a list with at least 1 item"),
        ("agents.a.examples=[{asked: '', answered: b}]", "examples.0.asked' is '': give a text"),
        ("judge={quality: 0, collaboration: 0, efficiency: 0}", "0}: quality, .* are all zero"),
        (f"judge.rubric={'x' * 10_001}", r"xxx\.\.\.: give at most 10000 characters"),
        ("search=[", "is not a YAML value"),
    ],
)
def test_faults_name_the_key_and_the_nearest(item: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve([], [item])
    assert "\n" not in str(caught.value)
    assert "Input should" not in str(caught.value)
    assert "Value error" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("sandbox.wall_s", ["0", "-1", "1e-9", ".inf", ".nan", "1e9"]),
        ("sandbox.memory_mb", ["0", "-1", "63", "1e9", ".nan"]),
        ("sandbox.output_kb", ["0", "-1", "1e9", ".inf"]),
        *(
            (f"prices.m.{name}", ["-1", ".inf", "-.inf", ".nan"])
            for name in ("input", "output", "cached_input", "cache_write")
        ),
    ],
)
def test_limits_and_prices_are_bounded(key: str, values: list[str]) -> None:
    whole = ["prices.m.input=1", "prices.m.output=1"]
    for value in values:
        with pytest.raises(ConfigError, match=f"'{key}' is "):
            resolve([], [*whole, f"{key}={value}"])


async def test_the_tightest_limits_still_run_code() -> None:
    limits = resolve([], [f"sandbox.{least}" for least in LEAST]).sandbox
    async with open_sandbox(limits) as sandbox:
        results = await sandbox.run("def f(x): return x", "f", [Call(args=(7,))])
    assert [result.value for result in results] == [7]


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "\x00"])
def test_files_that_are_no_config_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        resolve([file])


def test_files_that_are_no_text_or_absent_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match=r"bad.yaml can't be read"):
        resolve([file])
    with pytest.raises(ConfigError, match="does not exist: check --config"):
        resolve([tmp_path / "none.yaml"])


TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
).filter(lambda tree: isinstance(tree, dict))


@given(TREES, TREES)
def test_merging_keeps_what_is_not_laid_over(
    base: dict[str, object], extra: dict[str, object]
) -> None:
    before = repr(base)
    merged = merge(base, extra)
    assert repr(base) == before
    assert merged.keys() == base.keys() | extra.keys()
    assert merge(merged, extra) == merged


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsiodes": 3}, "unknown config key 'epsiodes': did you mean 'episodes'?"),
        ({"search": {"k_smaples": 3}}, "did you mean 'search.k_samples'?"),
        ({"episodes": "many"}, "config key 'episodes' is 'many': give a whole number"),
        ({"provider": {"name": "cloude"}}, "give 'auto', 'anthropic'"),
        ({"provider": {"model": "sk-ant-012345678901234567890"}}, "looks like an API key"),
    ],
)
def test_python_is_told_of_a_fault_in_the_words_of_the_command_line(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as from_python:
        RunConfig(**wrong)
    with pytest.raises(ConfigError) as from_file:
        validate(wrong)
    assert said in str(from_python.value)
    assert str(from_python.value) == str(from_file.value)
    assert "\n" not in str(from_python.value)


def test_defaults_are_valid_and_frozen() -> None:
    config = validate({})
    assert config == RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.episodes = 3  # type: ignore[misc]


def test_a_name_with_an_equals_sign_is_set_in_quotes() -> None:
    sets = ['prices."a=b.c".input=1', 'prices."a=b.c".output=2', 'options.x="y=z"']
    found = resolve(sets=sets)
    assert (found.prices["a=b.c"].input, found.prices["a=b.c"].output) == (1, 2)
    assert found.options["x"] == "y=z"


def test_a_role_with_dots_is_set_in_quotes() -> None:
    config = resolve([], ['agents."a.b".max_tokens=9', 'weights."x.y"=2', "agents.c.max_tokens=8"])
    assert {role: agent.max_tokens for role, agent in config.agents.items()} == {"a.b": 9, "c": 8}
    assert config.weights == {"x.y": 2}
