"""Every family of language models in transformers as a base of backend local: right, or refused.

A tiny model of random weights per family is loaded as a user's base is. One that is not refused
draws two prompts of unequal lengths in one batch, with an adapter each. Its log-probabilities are
compared with those that learning computes, and with those of plain transformers and peft, which
load the model and the saved adapters and compute each row alone.

    python -m benchmarks.guarantees.families [FAMILY...] [--json] [--kept FILE] [--write]

--kept: lines of --json, of families that are not tried again.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from benchmarks import page
from orchestry.core.errors import OrchestryError
from orchestry.report.text import table

COMMAND = "python -m benchmarks.guarantees.families --write"
CLOSE = 2e-3
"""Nats that two computations of a token may differ by, in float32."""
CPU_S, PATIENCE_S, MEMORY, LARGEST = 60, 1200, 8 << 30, 50_000_000
"""Of one family: seconds of CPU and of the clock, bytes of address space, and weights that still
count as tiny."""
_SAME = {
    1: "n_group topk_group first_k_dense_replace n_shared_experts num_shared_experts",
    2: "num_hidden_layers n_layer n_layers num_layers layers decoder_layers encoder_layers "
    "num_key_value_heads num_experts_per_tok",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
    "encoder_attention_heads num_experts num_local_experts n_routed_experts",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim rotary_dim mamba_n_heads "
    "mamba_d_head hidden_size_per_layer_input",
    16: "moe_intermediate_size shared_expert_intermediate_size kv_lora_rank q_lora_rank",
    32: "hidden_size d_model n_embd word_embed_proj_dim",
    64: "intermediate_size ffn_dim n_inner d_ff",
    300: "vocab_size vocab_size_per_layer_input",
    512: "max_position_embeddings n_positions max_seq_len",
}
SIZES = {name: size for size, names in _SAME.items() for name in names.split()}
"""What a family's config is given of, as far as it has these fields."""
LIKE = "Qwen/Qwen2.5-0.5B-Instruct"
"""Whose check at load is timed."""
OTHERWISE: tuple[dict[str, Any], ...] = (
    {},
    {"head_dim": None},
    {"head_dim": None, "num_key_value_heads": 4},
    {"bos_token_id": 1},
    {"num_experts_per_tok": 1},
    {"attention_types": [[["global"], 2]]},
    {"num_kv_shared_layers": 0, "head_dim": 8},
    {"layer_types": ["full_attention"] * 2},
    {"num_heads": 4, "head_dim": 16},
    {"num_hidden_layers": None},
)
"""Tried in turn until the family can be built; None leaves a field at its default."""
REASONS = {
    "only full attention is supported": "layers other than attention, or attention of other kinds",
    "in a batch and in a row alone": "a row is computed by its batch or by later tokens: encoders",
    "plain last linear layer": "the logits are bent behind the last layer; plays without learning",
    "no linear layer": "no linear layer for an adapter; `learn.method=full` is left",
    "learning from two prompts failed": "the model's own code fails on a batch",
    "does not say how long": "no length of context in the config",
    "images or sound": "the model reads images or sound too",
}
"""What a refusal holds, and how the table says it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one family."""

    family: str
    kind: Literal["right", "refused", "wrong", "not built"]
    said: str
    """The adapters' layers, the refusal, what differs, or why it can't be built."""
    nats: float = 0.0
    """The most that two computations of a token differed by."""


def names() -> list[str]:
    """All families."""
    from transformers.models.auto import modeling_auto

    return sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tried(family: str) -> Outcome:
    """In a process of its own, since a family may hang, crash, or take all memory."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_send, args=(family, theirs))
    child.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(PATIENCE_S) else None
    except EOFError:
        found = None
    child.kill()
    child.join()
    lost = Outcome(family, "wrong", f"the process ended, or took over {CPU_S} s of CPU")
    return found if isinstance(found, Outcome) else lost


def _send(family: str, answer: Connection) -> None:
    import torch
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with tempfile.TemporaryDirectory() as folder:
        answer.send(outcome(family, Path(folder)))


def outcome(family: str, folder: Path) -> Outcome:
    """The same in this process."""
    if fault := build(family, folder / "base"):
        return Outcome(family, "not built", fault)
    try:
        layers, nats = compared(folder)
    except OrchestryError as error:
        return Outcome(family, "refused", str(error).replace(str(folder / "base"), family))
    except Exception as error:  # whatever a family's code may raise
        return Outcome(family, "wrong", f"{type(error).__name__}: {error}"[:300])
    return Outcome(family, "right" if nats <= CLOSE else "wrong", layers, nats)


# --- a tiny model per family ----------------------------------------------------------------------


def build(family: str, folder: Path) -> str:
    """Saves a tiny model of random weights and a tokenizer. Says why it can't, or nothing."""
    from transformers import CONFIG_MAPPING

    from tests.backends.local.tiny import tiny_tokenizer

    fault = ""
    for more in OTHERWISE:
        try:
            model = _model(CONFIG_MAPPING[family], more)
            model.save_pretrained(folder)
            tiny_tokenizer().save_pretrained(folder)
            return ""
        except Exception as error:  # whatever a family's code may raise
            fault = fault or " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return fault


def _model(config: Any, more: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM
    made = config(**_sizes(config, more))
    with torch.device("meta"):
        weights = sum(one.numel() for one in build.from_config(made).parameters())
    if weights > LARGEST:
        raise ValueError(f"{weights:,} weights at these sizes")
    torch.manual_seed(0)
    model = build.from_config(made).eval()
    with torch.no_grad():  # as peaked as a trained model is
        for weight in model.parameters():
            if weight.dim() > 1 and 0 < weight.std() < 0.1:
                weight.mul_(0.2 / weight.std())
    return model


def _sizes(config: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Those of the config's fields, and of the configs within it."""
    known = {*inspect.signature(config.__init__).parameters, *config.attribute_map}
    known |= {*getattr(config, "__dataclass_fields__", ())}
    ends = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {k: v for k, v in {**SIZES, **ends, **more}.items() if k in known}
    found = {k: v for k, v in sizes.items() if v is not None or k == "bos_token_id"}
    if "qk_rope_head_dim" in known:  # latent attention has heads of its own sizes
        found = {**found, "num_key_value_heads": 4}
        found.pop("head_dim", None)
    inner = {name: type(getattr(config(), name)) for name in config.sub_configs}
    parts = {k: _sizes(one, more) for k, one in inner.items() if hasattr(one, "sub_configs")}
    return {**found, **parts}


# --- what is compared -----------------------------------------------------------------------------


def compared(folder: Path) -> tuple[str, float]:
    """The adapters' layers and the most that a token's log-probability differs by, in nats.

    Raises OrchestryError if the base is refused, as a run does when it begins.
    """
    import torch

    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.batch import Packed
    from orchestry.backends.local.logprobs import completion_logprobs
    from orchestry.backends.local.model import load_base
    from orchestry.backends.local.sampler import Prompt, Sampler
    from orchestry.backends.local.selfcheck import check_base
    from orchestry.backends.local.targets import ALL_LINEAR
    from orchestry.core.learning import LearnConfig

    base = load_base(str(folder / "base"), device="cpu")
    check_base(base, LearnConfig(targets=ALL_LINEAR), lambda line: None)
    adapters = Adapters(base, ("one", "two"), rank=4, dropout=0.0, targets=ALL_LINEAR)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in adapters.parameters():
            weight.add_(torch.randn(weight.shape, generator=random) * 0.1)
    prompts = [
        Prompt(i, tuple(range(5 + i, 5 + i + long)), 8, 1.0, 1.0, (), (3 * i, 3 * i + 1))
        for i, long in enumerate((4, 40))
    ]
    drawn = Sampler(base, adapters).draw(prompts, 2)
    groups = [
        Packed(prompt.agent_index, prompt.prompt_ids, tuple(one.ids for one in answers))
        for prompt, answers in zip(prompts, drawn, strict=True)
    ]
    served = torch.tensor([value for two in drawn for one in two for value in one.logprobs])
    adapters.save(folder)
    base.model.train()
    with torch.no_grad():
        learned = torch.cat(completion_logprobs(base, adapters, groups, 1.0))
    others = (learned, torch.cat([*_plain(folder, groups)]))
    apart = max(float((served - other).abs().max()) for other in others)
    return ", ".join(sorted(adapters.targets)), apart


def _plain(folder: Path, groups: Sequence[Any]) -> Iterator[Any]:
    """Each answer's log-probabilities by transformers and peft alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM
    for name, group in zip(("one", "two"), groups, strict=True):
        base = build.from_pretrained(folder / "base", dtype="float32", attn_implementation="eager")
        model = PeftModel.from_pretrained(base, str(folder / name)).eval()
        for ids in group.completions:
            row = torch.tensor([[*group.prompt_ids, *ids]])
            with torch.no_grad():
                logits = model(input_ids=row, use_cache=False).logits[0]
            before = len(group.prompt_ids)
            logprobs = logits[before - 1 : -1].float().log_softmax(-1)
            yield logprobs.gather(-1, torch.tensor(ids)[:, None]).squeeze(-1)


def check_seconds() -> tuple[float, float]:
    """Of the check at load, for a model of LIKE's sizes with random weights: of the clock, and of
    CPU, on one thread. What it computes does not depend on the weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from orchestry.backends.local.model import Base
    from orchestry.backends.local.selfcheck import check_base
    from orchestry.backends.local.sizes import KNOWN
    from orchestry.core.learning import LearnConfig
    from tests.backends.local.tiny import tiny_tokenizer

    shape, build = KNOWN[LIKE], AutoModelForCausalLM
    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
    )
    torch.set_num_threads(1)
    base = Base(build.from_config(config).eval(), tiny_tokenizer(), LIKE)
    began = time.perf_counter(), time.process_time()
    check_base(base, LearnConfig(), lambda line: None)
    return time.perf_counter() - began[0], time.process_time() - began[1]


# --- the page -------------------------------------------------------------------------------------


def body(found: Sequence[Outcome], seconds: tuple[float, float]) -> str:
    """The section's text."""
    import peft
    import transformers

    rows = dict[tuple[str, str], list[str]]()
    for one in found:
        rows.setdefault((one.kind, _why(one)), []).append(f"`{one.family}`")
    counts = {kind: sum(one.kind == kind for one in found) for kind in ("right", "refused")}
    built = [one for one in found if one.kind != "not built"]
    most = max((one.nats for one in found if one.kind == "right"), default=0.0)
    order = ("right", "refused", "wrong", "not built")
    lines = sorted(rows.items(), key=lambda one: (order.index(one[0][0]), -len(one[1])))
    return "\n\n".join(
        [
            f"transformers {transformers.__version__} has {len(found)} families of language "
            f"models, and {len(built)} could be built with tiny random weights. {counts['right']} "
            "are right: what is drawn, what is learned from, and what plain peft "
            f"{peft.__version__} computes with the saved adapters differ by at most "
            f"{most:.1g} nats per token. {counts['refused']} are refused when they are loaded. "
            f"{len(built) - sum(counts.values())} are wrong.",
            table(
                ["outcome", "why", "number", "families"],
                [[kind, why, str(len(ones)), ", ".join(ones)] for (kind, why), ones in lines],
            ),
            f"The check at load took {seconds[0]:.1f} s, {seconds[1]:.1f} s of CPU, on one thread "
            f"for a model with the sizes of {LIKE} in float32.",
        ]
    )


def _why(one: Outcome) -> str:
    if one.kind == "right":
        return "as plain transformers and peft compute it"
    if one.kind == "refused":
        return next((why for part, why in REASONS.items() if part in one.said), one.said)
    return one.said.partition(":")[0] if one.kind == "not built" else one.said


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for module in ("peft", "transformers.models.llama.modeling_llama"):
        importlib.import_module(module)  # once, for all processes
    lines = args.kept.read_text(encoding="utf-8").splitlines() if args.kept else []
    kept = {one.family: one for one in (Outcome(**json.loads(line)) for line in lines)}
    found = list[Outcome]()
    for family in args.families or names():
        found.append(kept.get(family) or tried(family))
        if args.json:
            print(json.dumps(asdict(found[-1])), flush=True)
    if args.json and not args.write:
        return
    said = body(found, check_seconds())
    print(said)
    if args.write:
        page.write("families", COMMAND, said)


if __name__ == "__main__":
    main()
