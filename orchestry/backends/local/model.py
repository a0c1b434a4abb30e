"""A frozen base model with its tokenizer, for the agents' adapters.

Its files, its device and precision (CPU, this process's GPU, 4 or 8 bits), and its digest. torch
and transformers are imported when a base is loaded, so that a missing package gives one clear
error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from orchestry.backends.local.chat import ChatForm, rendered
from orchestry.core.digests import folder_digest, text_digest
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, PromptTooLong, reason
from orchestry.core.machine import Launch, lacks_bfloat16, launched
from orchestry.core.tools import ToolSpec
from orchestry.core.types import Message
from orchestry.models.gguf import EMBEDDED, gguf_named
from orchestry.models.hermes import broken, plain

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Dtype = Literal["auto", "float32", "bfloat16"]
Quantize = Literal["nf4", "int8"]
_NEEDS = ("torch", "transformers", "safetensors", "gguf")
_FIX = install("local")
_READ = (
    *("*.safetensors", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "chat_template.jinja"),
)
"""The files of a model's folder that transformers reads: weights, config and tokenizer."""


@dataclass(frozen=True, slots=True)
class Base:
    """A frozen causal language model in evaluation mode."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    """With an EOS, a padding token and left padding."""
    name: str
    """Its name in adapters trained on it."""
    sha256: str | None = None
    """Digest of the weights' file, if known."""
    form: ChatForm = field(init=False, compare=False)
    """How its chat template takes a chat."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", ChatForm.of(self.tokenizer, self.name))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        from orchestry.backends.local.decode import longest_row

        return longest_row(self.model.config)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the tokenizer's EOS, those the model's authors add, and the
        one that the chat template writes behind an answer."""
        config = self.model.generation_config
        more = config.eos_token_id if config is not None else None
        ids = more if isinstance(more, list) else [more]
        every = (self.tokenizer.eos_token_id, self.form.end, *ids)
        return frozenset(i for i in every if isinstance(i, int))

    def render(
        self, messages: Sequence[Message], max_tokens: int = 0, tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Token ids of a chat by the model's template, up to where its answer begins.

        Tools, calls and results stand in it as the template has them; else as in models/hermes.

        Thinking is off if the template supports that. A control token's name in a message is broken
        up, so that no agent can forge the end of a turn. Raises PromptTooLong if the prompt plus
        `max_tokens` exceeds the context, and ConfigError if the template can't write the messages,
        such as a system message.
        """
        from jinja2 import TemplateError

        known = self._knows_tools
        try:
            ids: Any = rendered(
                self.tokenizer,
                self.form.written(
                    [self._plain(one) for one in (messages if known else plain(messages, tools))]
                ),
                tools=self._cleaned([one.function for one in tools]) if tools and known else None,
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError) as error:  # the latter: a tool whose schema is none
            raise ConfigError(
                f"the chat template of {self.name} can't write these messages and tools "
                f"({reason(error)}): change them, or choose a model whose template can"
            ) from None
        if len(ids) + max_tokens > self.context:
            raise PromptTooLong(
                f"the prompt has {len(ids):,} tokens, and with {max_tokens:,} for the answer that "
                f"passes the {self.context:,} of {self.name}: lower max_tokens, shorten the prompt,"
                " or choose a model with a longer context"
            )
        return tuple(ids)

    def answer_ids(self, text: str, ended: bool) -> tuple[int, ...]:
        """Token ids of an answer that others wrote; `ended`: with the end token behind it."""
        found: Any = self.tokenizer(self._cleaned(text), add_special_tokens=False)
        return (*found["input_ids"], *([self.end_id] if ended else []))

    @property
    def end_id(self) -> int:
        """The token that ends an answer in the chat template; else the tokenizer's EOS."""
        if self.form.end is not None:
            return self.form.end
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]
        ids: Any = rendered(self.tokenizer, self.form.written(chat))
        ends = [i for i in ids if i in self.eos_ids]
        return int(ends[-1] if ends else cast(Any, self.tokenizer).eos_token_id)

    @property
    def _knows_tools(self) -> bool:
        """Whether the chat template has tools, and calls in the form that is read here."""
        template = str(self.tokenizer.chat_template)
        return "<tool_call>" in template and "<function=" not in template

    def _plain(self, message: Message) -> dict[str, Any]:
        """A message as chat templates take it."""
        said = broken(message.content) if message.role == "tool" else message.content
        found: dict[str, Any] = {"role": message.role, "content": self._cleaned(said)}
        if message.calls:
            calls = [{"name": one.name, "arguments": one.given} for one in message.calls]
            calls = self._cleaned(calls)
            found["tool_calls"] = [{"type": "function", "function": one} for one in calls]
        return found

    def _cleaned(self, value: Any) -> Any:
        return self.form.cleaned(self.tokenizer, value)


def load_base(
    name: str = EMBEDDED,
    dtype: Dtype = "auto",
    quantize: Quantize | None = None,
    device: str = "auto",
    *,
    environ: Mapping[str, str] = os.environ,
) -> Base:
    """Loads a base by name: see source_of.

    `device` auto is CUDA if available; `dtype` auto is bfloat16 on a GPU that
    computes in it, else float32.
    `quantize` uses bitsandbytes. Only safetensors are read, because other files may run code. A
    GGUF file is downloaded and converted at its first use. Raises ConfigError if something is
    missing or the model is unsuitable, and OrchestryError if a GGUF file can't be fetched.
    """
    hush()
    require_local()
    from orchestry.backends.local.logprobs import never_drops
    from orchestry.backends.local.wide import widen

    place = device_of(device)
    plain_attention()
    precision = _dtype(dtype, place)
    options: dict[str, Any] = {"dtype": precision}
    if quantize is not None:
        options |= quantized(quantize, place, precision)
    weights = gguf_named(name, environ)
    source = loadable(name, environ, in_half(dtype, device))
    _check_found(name, source)
    tokenizer = _tokenizer(name, source)
    model: Any = _model(name, source, options)  # whose methods transformers wraps untyped
    if quantize is None:
        with _loading(name):
            model.to(place)
    keep_gradients(model)  # also of a base that was saved in 4 bits
    model.requires_grad_(False)
    model.eval()
    never_drops(model)
    widen(model)
    if not isinstance(getattr(model.config, "max_position_embeddings", None), int):
        if "text_config" in model.config.sub_configs:
            raise ConfigError(
                f"{name} reads images or sound too ({model.config.model_type}), and only models of "
                "text alone are supported: choose one of these"
            )
        raise ConfigError(
            f"the config of {name} does not say how long its context is: set "
            "max_position_embeddings in its config.json"
        )
    return Base(model, tokenizer, name, weights.sha256 if weights else None)


def require_installed() -> None:
    """Raises ConfigError if a package of the extra `local` is missing; imports nothing."""
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the local regime needs {', '.join(missing)}, not installed here: {_FIX}"
        )


def loadable(name: str, environ: Mapping[str, str] = os.environ, half: bool = False) -> str:
    """The base's source for transformers: a folder's full path or a hub's id.

    Raises as load_base does; a GGUF file is converted first if needed, `half`: to bfloat16.
    """
    from orchestry.backends.local.converted import converted

    weights = gguf_named(name, environ)
    return source_of(name) if weights is None else str(converted(weights, environ, half))


def require_local() -> None:
    """Raises ConfigError if a package of the extra `local` can't be imported."""
    require_installed()
    for package in _NEEDS:
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"the local regime needs {package}, which can't be imported here "
                f"({reason(error)}): {_FIX}"
            ) from None


def _dtype(dtype: Dtype, place: torch.device) -> torch.dtype:
    import torch

    if dtype == "auto":
        half = place.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if half else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def in_half(dtype: Dtype, device: str) -> bool:
    """Whether a base is computed in bfloat16 there."""
    import torch

    return _dtype(dtype, device_of(device)) == torch.bfloat16


def source_of(name: str) -> str:
    """A base's name in full: "embedded", another name of `models list`, a hub's
    `owner/name:file.gguf`, the path of a GGUF file or of a model's folder, or a hub's id.

    Raises ConfigError for a missing file or folder.
    """
    if weights := gguf_named(name):
        return weights.base
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ConfigError(
            f"the model '{name}' is not a folder here: correct the path, or name a hub model, "
            f"'{EMBEDDED}', a GGUF file or a name of `orchestry models list`"
        )
    return name


def _check_found(name: str, source: str) -> None:
    """Requests the smallest file first, so that an unreachable hub is waited for only once."""
    from transformers import AutoConfig

    loader: Any = AutoConfig
    with _loading(name):
        loader.from_pretrained(source)


def _tokenizer(name: str, source: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    with _loading(name):
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(source)
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"the model {name} has no chat template: choose one that was tuned to follow "
            "instructions, or put a chat_template.jinja into its folder"
        )
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"the tokenizer of {name} names no end-of-sequence token, so no answer could end: set "
            "eos_token in its tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token is fine
    tokenizer.padding_side = "left"
    # A prompt that is too long is our own error, in `render`.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def _model(name: str, source: str, options: dict[str, Any]) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    options |= {"use_safetensors": True, "output_loading_info": True}
    model: PreTrainedModel
    with _loading(name):
        try:
            model, info = loader.from_pretrained(source, attn_implementation="sdpa", **options)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            model, info = loader.from_pretrained(source, attn_implementation="eager", **options)
    if missing := sorted(info["missing_keys"]):  # transformers would leave missing weights random
        raise ConfigError(
            f"the files of {name} lack {len(missing)} of its weights, {missing[0]} the first: "
            "fetch it again"
        )
    return model


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Hides progress bars, and turns transformers' errors into one line."""
    from safetensors import SafetensorError

    from orchestry.backends.local.memory import fitting

    try:
        with quiet(), fitting(f"the weights of {name}"):
            yield
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise ConfigError(
            f"the model '{name}' can't be loaded ({reason(error)}): name a folder with a model of "
            f"transformers, a model hub's id (with the network it needs), '{EMBEDDED}', a GGUF "
            "file or a name of `orchestry models list`"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hides transformers' progress bars, which it draws even without a terminal, and its retry
    notes for an unreachable hub; the error says that it was not reached."""
    from transformers.utils import logging as untyped

    progress: Any = untyped
    shown, hub = progress.is_progress_bar_enabled(), logging.getLogger("huggingface_hub")
    level = hub.level
    progress.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(level)
        if shown:
            progress.enable_progress_bar()


def quantized(kind: Quantize, place: torch.device, precision: torch.dtype) -> dict[str, Any]:
    """Options for transformers' from_pretrained; raises ConfigError if a package is missing."""
    for package in ("bitsandbytes", "accelerate"):
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"learn.quantize={kind} needs {package}, which can't be imported here "
                f"({reason(error)}): {install('quantize')}, or leave out learn.quantize"
            ) from None
    from transformers import BitsAndBytesConfig

    build: Any = BitsAndBytesConfig
    config = (
        build(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=precision)
        if kind == "nf4"
        else build(load_in_8bit=True)
    )
    return {"quantization_config": config, "device_map": {"": place}}


def hush() -> None:
    """Silences two loggers of bitsandbytes, which transformers imports wherever it is installed:
    one tells of a kernel that CPUs lack, the other of a cast, once per product of 8-bit layers."""
    for name in ("bitsandbytes.backends.cpu.ops", "bitsandbytes.autograd._functions"):
        logging.getLogger(name).setLevel(logging.ERROR)


def keep_gradients(model: Any) -> None:
    """Keeps a base on a CPU in a form that gradients pass through.

    On CPUs with AVX512-BF16, bitsandbytes 0.50 repacks 4-bit weights when answers are drawn. The
    product with packed weights has no gradient, so training would continue with wrong ones.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def device_of(device: str = "auto") -> torch.device:
    """`auto`: CUDA if available; `cuda`: this process's own GPU in a launch.

    Raises ConfigError for a missing device.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device '{device}' is unknown ({reason(error)}): choose auto, cpu or cuda"
        ) from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device '{device}' is not available: choose auto or cpu")
    return _own_gpu(launched()) if place == torch.device("cuda") else place


def gpu_name(device: torch.device) -> str | None:
    """The GPU's name, such as "NVIDIA H100 80GB HBM3"; None for a CPU. In a launch of several
    processes it is that of this one, and says so."""
    import torch

    if device.type != "cuda":
        return None
    name, here = torch.cuda.get_device_name(device), launched()
    several = f" (process {here.rank} of {here.processes})" if here.processes > 1 else ""
    return f"{name}{several}"


def slow_half(device: str) -> bool:
    """Whether bfloat16 is computed on a CPU that has no instructions for it."""
    return device_of(device).type == "cpu" and lacks_bfloat16()


def plain_attention() -> None:
    """Uses only the flash and memory-efficient attention kernels, in all threads.

    cuDNN's kernel, torch's default on Hopper, builds a plan for every new shape, so for every drawn
    token, and gives NaN gradients for some shapes with a mask (pytorch/pytorch#196678).
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def _own_gpu(here: Launch) -> torch.device:
    """One GPU per process on this machine; a single process uses CUDA's default."""
    import torch

    if here.processes == 1:
        return torch.device("cuda")
    if here.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"{here.local_processes} processes were launched on this machine, and its GPUs are "
            f"{torch.cuda.device_count()}: launch one process per GPU, or set learn.device=cpu"
        )
    return torch.device("cuda", here.local_rank)


def base_digest(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The digest of a base: a GGUF file, a folder, or a hub's id in the hub's cache.

    Equal for equal files in another place. None for what a hub has and is not downloaded yet.
    Raises ConfigError for a file or folder that is missing or can't be read.
    """
    if weights := gguf_named(name, environ):  # libraries that convert it leave traces
        return text_digest(weights.sha256) if weights.sha256 else None
    folder = Path(source_of(name))
    if not folder.is_dir():
        cached = fetched(name)
        if cached is None:
            return None
        folder = cached
    try:
        return folder_digest(
            folder, {file for kind in _READ for file in folder.glob(kind)}, environ
        )
    except OSError as error:
        raise ConfigError(
            f"the files of the model {name} can't be read ({reason(error)}): correct the rights of "
            f"{folder}, or fetch it again"
        ) from None


def fetched(name: str) -> Path | None:
    """The path of a hub's model on this disk."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not a hub's name: loading it raises the error
        return None
    return Path(found).parent if isinstance(found, str) else None
