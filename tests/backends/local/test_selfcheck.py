"""A base whose learned policy is not the drawn one is refused when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2Config,
)

from orchestry.backends.local import selfcheck
from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.model import Base, Dtype, load_base
from orchestry.backends.local.sampler import Prompt, Sampler
from orchestry.backends.local.selfcheck import check_base, check_learnable
from orchestry.backends.local.targets import ALL_LINEAR
from orchestry.core.errors import ConfigError
from orchestry.core.learning import LearnConfig
from tests.backends.local.tiny import Kind, tiny_folder, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def family(folder: Path, config: Any, dtype: Dtype = "auto") -> Base:
    """A model of that config with random weights, loaded as a user's is."""
    build: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    build.from_config(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return load_base(str(folder), device="cpu", dtype=dtype)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3", "gpt_neox"])
def test_a_base_that_learns_as_it_draws_passes_and_stays_as_it_was(
    tmp_path: Path, kind: Kind
) -> None:
    base = load_base(str(tiny_folder(tmp_path, kind)), device="cpu")
    before = {name: weight.clone() for name, weight in base.model.state_dict().items()}
    check_learnable(base)
    assert not base.model.training
    assert all(
        torch.equal(weight, before[name]) for name, weight in base.model.state_dict().items()
    )
    assert not any(module._forward_hooks for module in base.model.modules())


def test_a_base_that_passed_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    computed = list[bool]()
    monkeypatch.setattr(selfcheck, "check_learnable", lambda base, learns: computed.append(learns))
    base = load_base(str(tiny_folder(tmp_path / "one")), device="cpu")
    other = load_base(str(tiny_folder(tmp_path / "two", "qwen2")), device="cpu")
    plays = LearnConfig(enabled=False)
    for one, settings in ((base, LearnConfig()), (base, LearnConfig()), (base, plays)):
        check_base(one, settings, print)
    check_base(other, LearnConfig(), print)
    assert computed == [True, False, True]
    (tmp_path / "one" / "generation_config.json").write_text('{"top_k": 5}')  # another base
    check_base(base, LearnConfig(), print)
    assert computed == [True, False, True, True]


def test_a_base_that_fails_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = family(tmp_path / "bert", BertConfig(**SIZES, type_vocab_size=1))
    for _ in range(2):
        with pytest.raises(ConfigError, match="can't be used here"):
            check_base(base, LearnConfig(targets=ALL_LINEAR), print)


def _noisy(module: Any, inputs: Any, output: Any) -> Any:
    return torch.nn.functional.dropout(output, 0.1, module.training)


def _by_the_batch(module: Any, inputs: Any, output: Any) -> Any:
    return output * (1.0 + 0.01 * inputs[0].shape[1])


@pytest.mark.parametrize("fault", [_noisy, _by_the_batch])
def test_a_base_that_does_not_is_refused(fault: Any) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    base.model.model.layers[0].mlp.register_forward_hook(fault)
    with pytest.raises(ConfigError, match=r"tiny can't be used here: .* differs by .* nats"):
        check_learnable(base)


def test_rates_under_any_name_are_switched_off(tmp_path: Path) -> None:
    base = load_base(str(tiny_folder(tmp_path)), device="cpu")
    rates = [
        value
        for module in base.model.modules()
        for place in (module, getattr(module, "config", module))
        for name, value in vars(place).items()
        if "drop" in name and isinstance(value, float)
    ]
    assert rates
    assert not any(rates)


def test_noise_of_experts_is_switched_off_and_the_model_stays_the_same(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
    config: Any = PhimoeConfig(**SIZES, input_jitter_noise=0.1, router_jitter_noise=0.1, **sizes)
    base = family(tmp_path, config)
    check_learnable(base)
    plain: Any = AutoModelForCausalLM
    plain = plain.from_pretrained(tmp_path, dtype="float32")
    ids = torch.arange(9, 40)[None]
    with torch.no_grad():
        expected = plain(input_ids=ids).logits
        for mode in (False, True):
            found: Any = base.model.train(mode)(input_ids=ids, use_cache=False).logits
            assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("window", [0, None])
def test_a_window_of_0_is_none(tmp_path: Path, window: int | None) -> None:
    base = family(tmp_path, Qwen2Config(**SIZES))
    base.model.config.sliding_window = window
    check_learnable(base)
    assert base.context == SIZES["max_position_embeddings"]


@pytest.mark.parametrize(
    "config",
    [GraniteConfig(**SIZES, logits_scaling=8.0), CohereConfig(**SIZES, logit_scale=0.25)],
    ids=["granite", "cohere"],
)
def test_a_factor_behind_the_output_layer_is_learned_with(tmp_path: Path, config: Any) -> None:
    check_learnable(family(tmp_path, config))


def test_a_base_whose_logits_are_bent_can_be_played_but_not_learn(tmp_path: Path) -> None:
    base = family(tmp_path, Gemma2Config(**SIZES, head_dim=8, sliding_window=256))
    check_learnable(base, learns=False)
    with pytest.raises(ConfigError, match=r"final_logit_softcapping.* \(learn\.enabled=false\)"):
        check_learnable(base)


def test_in_16_bits_a_single_token_may_be_far_apart() -> None:
    """On prompts without sense, one of 16 was."""
    base, compare = Base(tiny_model(), tiny_tokenizer(), "tiny"), selfcheck._compare
    one, other = torch.zeros(16), torch.full((16,), 0.05)
    other[3] = 1.1
    compare(base, "in two ways", one, other, True)
    for apart, half in ((other, False), (one + 0.3, True), (one + torch.nan, True)):
        with pytest.raises(ConfigError, match=r"in two ways, differs by .* nats"):
            compare(base, "in two ways", one, apart, half)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_encoder_is_refused(tmp_path: Path, dtype: Dtype) -> None:
    base = family(tmp_path, BertConfig(**SIZES, type_vocab_size=1), dtype)
    with pytest.raises(ConfigError, match=r"in a batch and in a row alone, differs by"):
        check_learnable(base)


def longrope(folder: Path) -> Base:
    """Its positions change where any row of a batch has more than 64 tokens."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_type": "longrope"}
    rope = {**factors, "rope_theta": 10_000.0}
    config = Phi3Config(**SIZES, rope_parameters=rope, original_max_position_embeddings=64)
    return family(folder, config)


@pytest.mark.parametrize("beside", [0, 50])
def test_an_answer_by_longrope_does_not_depend_on_the_rows_beside_it(
    tmp_path: Path, beside: int
) -> None:
    base = longrope(tmp_path)
    assert base.context == 64
    adapters = Adapters(base, ["one"], targets=ALL_LINEAR)
    other = Prompt(0, tuple(range(9, 19 + beside)), 8, 1.0, 1.0, (), (2,))
    one = Prompt(0, tuple(range(9, 20)), 8, 1.0, 1.0, (), (1,))
    sampler = Sampler(base, adapters)
    alone = sampler.draw([one], 1)
    if len(other.prompt_ids) + 8 > base.context:
        with pytest.raises(ConfigError, match="longrope"):
            sampler.draw([one, other], 1)
        return
    assert sampler.draw([one, other], 1)[0][0].ids == alone[0][0].ids


def test_what_a_base_is_used_otherwise_for_is_told(tmp_path: Path) -> None:
    base, told = longrope(tmp_path), list[str]()
    check_base(base, LearnConfig(targets=ALL_LINEAR), told.append)
    assert [line[:40] for line in told] == ["prompt and answer have at most 64 tokens"]


def test_a_template_without_a_system_message_is_told(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    turns = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}"
    (tmp_path / "chat_template.jinja").write_text(turns + "{% endif %}{{ m.content }}{% endfor %}")
    told = list[str]()
    check_base(load_base(str(tmp_path), device="cpu"), LearnConfig(), told.append)
    assert [line.partition(" knows ")[2] for line in told] == [
        "no system message: its text stands at the head of the first user's message"
    ]


@pytest.mark.parametrize("faulty", ["linear layers are looked for", "two prompts are drawn"])
def test_what_a_familys_own_code_raises_is_a_refusal(faulty: str) -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")

    def fault(module: Any, inputs: Any, output: Any) -> None:
        if faulty.startswith("linear") or len(output) > 2:
            raise ValueError("no language")

    base.model.model.layers[0].mlp.register_forward_hook(fault)
    with pytest.raises(ConfigError, match=r"tiny can't be used here.*ValueError: no language"):
        check_base(base, LearnConfig(), print)


def test_a_base_without_a_linear_layer_is_named(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 300,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 4,
        "bos_token_id": None,
    }
    base = family(tmp_path, GPT2Config(**sizes, eos_token_id=2, pad_token_id=0))
    with pytest.raises(ConfigError, match=r"no linear layer .* set learn\.method=full"):
        check_base(base, LearnConfig(), print)
