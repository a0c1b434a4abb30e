"""One base, many adapters: exact against peft, each row by its own, and nothing else moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor
from transformers import AutoModelForCausalLM

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.model import Base
from orchestry.backends.local.sizes import ATTENTION
from orchestry.core.errors import ConfigError, StoreError
from tests.backends.local.tiny import Kind, tiny_model, tiny_tokenizer

old_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is dep:FutureWarning")
"""peft 0.21 asks a name that transformers 5.23 has renamed."""
AGENTS = ("writer", "editor", "UI/UX: ..")
IDS: Tensor = torch.randint(3, 250, (6, 9), generator=torch.Generator().manual_seed(1))
MIXED = [2, 0, -1, 1, 0, 2]


pytestmark = pytest.mark.usefixtures("one_thread")


def worn(kind: Kind = "llama", dtype: Any = torch.float32, **settings: Any) -> Adapters:
    """Adapters on a tiny base, trained as it were: no B is zero."""
    model: Any = tiny_model(kind)
    settings = {"rank": 4, "alpha": 8, "dropout": 0.0, **settings}
    adapters = Adapters(Base(model.to(dtype), tiny_tokenizer(), "tiny"), AGENTS, **settings)
    stir(adapters)
    return adapters


def stir(adapters: Adapters, seed: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in adapters.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)


def logits(adapters: Adapters, rows: Any, ids: Tensor = IDS) -> Tensor:
    with adapters.rows(rows):
        found: Tensor = adapters.base.model(ids).logits
    return found


def descend(found: Tensor) -> None:
    """The gradient of a loss that every row and position has a part in."""
    loss: Any = found.log_softmax(-1)[..., 7].sum()
    loss.backward()


def learn(adapters: Adapters, rows: Any) -> list[Tensor | None]:
    """The adapters' gradients of some loss; the backward pass runs outside `rows`."""
    for weight in adapters.parameters():
        weight.grad = None
    descend(logits(adapters, rows))
    return [weight.grad for weight in adapters.parameters()]


@pytest.mark.parametrize(
    "rows", [MIXED, [0, 0, 1, 2, 2, 2], [-1, -1, -1, 1, 1, 1], [-1] * 6, [1] * 6]
)
def test_single_tokens_meet_all_adapters_at_once_and_get_their_own(rows: list[int]) -> None:
    adapters = worn(dtype=torch.float64)
    adapters.stacks, ids = True, IDS[:, :1]
    with torch.no_grad():
        together = logits(adapters, rows, ids)
        alone = [logits(adapters, row, ids[[place]]) for place, row in enumerate(rows)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-12, rtol=0)
    torch.testing.assert_close(logits(adapters, rows, ids), together, atol=1e-12, rtol=0)


@old_peft
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_saved_adapters_are_the_same_in_peft_and_merged(kind: Kind, tmp_path: Path) -> None:
    import peft

    adapters = worn(kind)
    adapters.save(tmp_path)
    folders = ["writer", "editor", "UI%2FUX%3A %2E%2E"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(folders)
    outputs = []
    for agent, folder in enumerate(folders):
        plain: Any = peft.PeftModel.from_pretrained(tiny_model(kind), tmp_path / folder)
        ours = logits(adapters, agent)
        torch.testing.assert_close(plain(IDS).logits, ours, atol=1e-5, rtol=0)
        torch.testing.assert_close(plain.merge_and_unload()(IDS).logits, ours, atol=1e-5, rtol=0)
        outputs.append(ours)
    assert (outputs[0] - outputs[1]).abs().max() > 0.1
    assert (outputs[0] - logits(adapters, -1)).abs().max() > 0.1


@old_peft
def test_peft_gives_the_same_gradients(tmp_path: Path) -> None:
    import peft

    adapters = worn()
    adapters.save(tmp_path)
    plain: Any = peft.PeftModel.from_pretrained(
        tiny_model(), tmp_path / "editor", is_trainable=True
    )
    descend(plain(IDS).logits)
    learn(adapters, 1)
    theirs = {n.replace(".default", ""): p.grad for n, p in plain.named_parameters()}
    named = dict(adapters._named(1))
    assert len(named) == 2 * 4 * 2
    for name, weight in named.items():
        torch.testing.assert_close(weight.grad, theirs[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [MIXED, sorted(MIXED), [1, 1, 1, 0, 0, 0], [0] * 6])
def test_mixed_rows_are_each_agents_own(rows: list[int]) -> None:
    adapters = worn()
    mixed = logits(adapters, rows)
    assert torch.equal(mixed, logits(adapters, torch.tensor(rows)))
    for row, agent in enumerate(rows):
        alone = logits(adapters, agent)[row]
        torch.testing.assert_close(mixed[row], alone, atol=1e-5, rtol=1e-6)


def test_mixed_rows_are_exact_in_float64() -> None:
    adapters = worn(dtype=torch.float64)
    assert {weight.dtype for weight in adapters.parameters()} == {torch.float64}
    mixed = logits(adapters, MIXED)
    for row, agent in enumerate(MIXED):
        torch.testing.assert_close(mixed[row], logits(adapters, agent)[row], atol=1e-12, rtol=0)


def test_row_minus_one_is_the_bare_base_bit_for_bit() -> None:
    adapters = worn()
    bare = tiny_model()(IDS).logits
    assert torch.equal(logits(adapters, -1), bare)
    assert torch.equal(logits(adapters, [-1] * 6), bare)


def test_fresh_adapters_are_the_base_and_differ_by_agent_and_seed() -> None:
    base = Base(tiny_model(), tiny_tokenizer(), "tiny")
    adapters = Adapters(base, AGENTS, seed=3)
    torch.testing.assert_close(logits(adapters, MIXED), logits(adapters, -1), atol=0, rtol=0)
    first = [adapters.parameters(agent)[0] for agent in range(3)]
    assert not torch.equal(first[0], first[1])
    bound = 32**-0.5  # kaiming-uniform with a = sqrt(5): 1 / sqrt(fan in)
    assert 0.8 * bound < first[0].abs().max() <= bound
    again = Adapters(Base(tiny_model(), tiny_tokenizer(), "tiny"), AGENTS, seed=3)
    other = Adapters(Base(tiny_model(), tiny_tokenizer(), "tiny"), AGENTS, seed=4)
    assert torch.equal(again.parameters(0)[0], first[0])
    assert not torch.equal(other.parameters(0)[0], first[0])


def test_gradients_reach_the_batchs_adapters_only_and_never_the_base() -> None:
    adapters = worn()
    before = {name: weight.clone() for name, weight in adapters.base.model.named_parameters()}
    optimizer = torch.optim.AdamW(adapters.parameters(), lr=0.1)
    learn(adapters, [0, 2, -1, 0, 2, 0])
    assert all(weight.grad is None for weight in adapters.parameters(1))
    for weight in (*adapters.parameters(0), *adapters.parameters(2)):
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0
    kept = [weight.clone() for weight in adapters.parameters(1)]
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(kept, adapters.parameters(1), strict=True))
    for name, weight in adapters.base.model.named_parameters():
        assert not weight.requires_grad
        assert weight.grad is None
        assert torch.equal(weight, before[name])


def test_gradients_of_mixed_rows_are_the_sums_of_each_rows_own() -> None:
    adapters = worn(dtype=torch.float64)
    mixed = learn(adapters, MIXED)
    total = [torch.zeros_like(weight) for weight in adapters.parameters()]
    for row, agent in enumerate(MIXED):
        for weight in adapters.parameters():
            weight.grad = None
        if agent >= 0:
            descend(logits(adapters, agent, IDS[row : row + 1]))
        for kept, weight in zip(total, adapters.parameters(), strict=True):
            kept += 0 if weight.grad is None else weight.grad
    for found, expected in zip(mixed, total, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointed_layers_recompute_with_their_own_rows_and_masks(dropout: float) -> None:
    adapters = worn(dtype=torch.float64, dropout=dropout)
    model: Any = adapters.base.model.train()
    plain = learn(adapters, MIXED)
    model.activation_checkpointing_enable()
    adapters.reseed(0)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    model.model.layers[0].self_attn.q_proj.register_forward_hook(count)
    again = learn(adapters, MIXED)
    assert calls == 2  # forward, and once more in the backward pass
    for found, expected in zip(again, plain, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_a_backward_pass_inside_other_rows_still_uses_its_own() -> None:
    adapters = worn(dtype=torch.float64)
    model: Any = adapters.base.model.train()
    plain = learn(adapters, MIXED)
    model.activation_checkpointing_enable()
    for weight in adapters.parameters():
        weight.grad = None
    loss: Any = logits(adapters, MIXED).log_softmax(-1)[..., 7].sum()
    with adapters.rows([1] * 6):
        loss.backward()
        after = adapters.base.model(IDS).logits
    for weight, expected in zip(adapters.parameters(), plain, strict=True):
        torch.testing.assert_close(weight.grad, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(after, logits(adapters, 1), atol=1e-12, rtol=0)


def test_dropout_acts_in_training_only_and_is_a_function_of_its_seed() -> None:
    adapters = worn(dropout=0.4)
    assert torch.equal(logits(adapters, 0), logits(adapters, 0))
    quiet = logits(adapters, 0)
    adapters.base.model.train()
    state = torch.random.get_rng_state()
    adapters.reseed(11)
    first, second = logits(adapters, 0), logits(adapters, 0)
    assert not torch.equal(first, second)
    assert (first - quiet).abs().max() > 1e-3
    assert torch.equal(logits(adapters, -1), tiny_model()(IDS).logits)
    adapters.reseed(11)
    assert torch.equal(logits(adapters, 0), first)
    assert torch.equal(logits(adapters, 0), second)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_dropout_keeps_the_mean() -> None:
    adapters = worn(dropout=0.25)
    x = torch.ones(50, 400)
    dropped = adapters._dropped(x, 3)
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 4 / 3))
    assert abs(len(kept) / x.numel() - 0.75) < 0.02
    assert abs(dropped.mean().item() - 1) < 0.02


def test_shared_agents_have_one_adapter(tmp_path: Path) -> None:
    adapters = worn(shared=True)
    assert torch.equal(logits(adapters, [0, 1, 2, 0, 1, 2]), logits(adapters, 0))
    assert torch.equal(logits(adapters, [-1] * 6), tiny_model()(IDS).logits)
    ours = adapters.parameters(2)
    assert all(a is b for a, b in zip(ours, adapters.parameters(0), strict=True))
    assert len(adapters.parameters()) == len(ours)
    adapters.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]
    other = worn(shared=True)
    stir(other, 9)
    other.load(tmp_path)
    assert torch.equal(logits(other, 1), logits(adapters, 1))


def test_what_is_saved_loads_bit_for_bit(tmp_path: Path) -> None:
    adapters = worn()
    adapters.save(tmp_path)
    other = worn()
    stir(other, 9)
    assert not torch.equal(logits(other, 1), logits(adapters, 1))
    other.load(tmp_path)
    for ours, theirs in zip(adapters.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_bfloat16_base_has_float32_adapters_whose_steps_show_at_once() -> None:
    adapters = worn(dtype=torch.bfloat16)
    assert {weight.dtype for weight in adapters.parameters()} == {torch.float32}
    with torch.no_grad():
        before = logits(adapters, 0)
    assert before.dtype == torch.bfloat16
    exact = logits(worn(), 0)
    assert (before - exact).norm() < 0.05 * exact.norm()
    optimizer = torch.optim.AdamW(adapters.parameters(0), lr=0.05)
    learn(adapters, 0)
    optimizer.step()
    with torch.no_grad():
        assert (logits(adapters, 0) - before).abs().max() > 0.05


def test_an_exported_model_is_base_and_adapter_in_one(tmp_path: Path) -> None:
    adapters = worn()
    adapters.export(1, tmp_path)
    plain: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(plain(IDS).logits, logits(adapters, 1), atol=1e-5, rtol=0)
    assert (tmp_path / "tokenizer.json").exists()
    assert torch.equal(logits(adapters, -1), tiny_model()(IDS).logits)


def test_an_adapter_of_another_base_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    adapters = worn()
    adapters.save(tmp_path)
    for edit, message in (
        ({"base_model_name_or_path": "other"}, "names the base other, .* if they are the same, wr"),
        ({"r": 8}, r"has r 8, and this run learn\.rank=4: set learn\.rank=8"),
        ({"lora_alpha": 4}, r"has lora_alpha 4, and this run learn\.alpha=8: set learn\.alpha=4"),
        (
            {"use_rslora": True},
            r"has use_rslora True, and this run learn\.rslora=false: set learn\.rslora=true",
        ),
        ({"use_dora": True}, "has use_dora True, and backend local trains plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save .*start from another adapter"),
        ({"target_modules": ["c_attn"]}, "changes c_attn, and this run trains k_proj, o_proj"),
    ):
        file = tmp_path / "editor" / "adapter_config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps({**config, **edit}))
        other = worn()
        stir(other, 9)
        before = logits(other, 0)
        with pytest.raises(ConfigError, match=message):
            other.load(tmp_path)
        assert torch.equal(logits(other, 0), before)  # though writer's folder was sound
        file.write_text(json.dumps(config))


def test_adapters_that_do_not_fit_or_can_not_be_read_are_refused(tmp_path: Path) -> None:
    adapters = worn()
    adapters.save(tmp_path)
    fewer = worn(targets=("q_proj",))
    with pytest.raises(ConfigError, match=r"trains q_proj: set learn\.targets to \[k_proj, o_"):
        fewer.load(tmp_path)
    config = tmp_path / "writer" / "adapter_config.json"
    text = config.read_text()
    config.write_text(json.dumps({**json.loads(text), "target_modules": "q_proj"}))  # a pattern
    with pytest.raises(ConfigError, match=r"k_proj\.lora_A\.weight is \(4, 32\), expected absent"):
        fewer.load(tmp_path)
    with pytest.raises(StoreError, match=r"nowhere holds no adapter writer, .*nobody: name a fold"):
        adapters.load(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"no adapter shared, but of .*: set learn\.shared=false"):
        worn(shared=True).load(tmp_path)
    config.write_text("[]")
    with pytest.raises(StoreError, match=r"adapter_config.json can't be read \(it holds no keys"):
        adapters.load(tmp_path)
    config.write_text(text)
    weights = tmp_path / "writer" / "adapter_model.safetensors"
    weights.write_bytes(b"half")
    with pytest.raises(
        StoreError, match=r"safetensors can't be read .*not what was written\): res"
    ):
        adapters.load(tmp_path)
    (tmp_path / "writer" / "adapter_digests.json").unlink()  # as others make adapters
    with pytest.raises(StoreError, match=r"safetensors can't be read .*header.*: restore it"):
        adapters.load(tmp_path)
    weights.unlink()
    with pytest.raises(StoreError, match=r"safetensors can't be read .*: restore it"):
        adapters.load(tmp_path)


def test_equal_adapters_are_equal_files(tmp_path: Path) -> None:
    """In every process: peft writes a set, whose order hash seeds decide."""
    adapters = worn()
    adapters.save(tmp_path)
    config = json.loads((tmp_path / "editor" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(ATTENTION)


def test_what_can_not_be_meant_is_refused() -> None:
    adapters = worn()
    with pytest.raises(RuntimeError, match=r"outside Adapters\.rows"):
        adapters.base.model(IDS)
    with pytest.raises(RuntimeError, match="5 rows for a batch of 6"):
        logits(adapters, [0] * 5)
    with pytest.raises(IndexError, match="agent 3 of 3"):
        logits(adapters, [0, 1, 3, 0, 0, 0])
    with pytest.raises(ConfigError, match="wears adapters already"):
        Adapters(adapters.base, AGENTS)
    with pytest.raises(ConfigError, match=r"no linear layer c_attn .*among .*q_proj"):
        worn(targets=("c_attn",))


def test_rows_nest_and_end_with_an_error_too() -> None:
    adapters = worn()
    one = logits(adapters, 1)
    with adapters.rows(1):
        with pytest.raises(ZeroDivisionError), adapters.rows([0] * 6):
            raise ZeroDivisionError
        assert torch.equal(adapters.base.model(IDS).logits, one)


def test_two_bases_serve_side_by_side() -> None:
    llama, qwen = worn("llama"), worn("qwen2")
    alone = logits(llama, 0), logits(qwen, 1)
    with llama.rows(0), qwen.rows(1):
        assert torch.equal(llama.base.model(IDS).logits, alone[0])
        assert torch.equal(qwen.base.model(IDS).logits, alone[1])
