"""Draws answers from running vLLM servers instead of from the weights of this process.

One request per sample, because vLLM seeds the samples of one request with consecutive numbers; its
prefix cache still computes a prompt only once. Prompts and answers are sent as token ids, end token
included, so no text is tokenized twice. A repeated run draws the same only with vLLM's batch
invariance, on the same GPU and version (its docs/usage/reproducibility.md).

Adapter names are made from their contents. Before each draw, missing ones are loaded, for instance
after the server restarted. New contents need a new name, because vLLM caches keys and values by
adapter name and would use stale ones (vllm-project/vllm#42125).

Several servers draw as one (`replicas.py`).
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from orchestry.backends.local.batch import Packed
from orchestry.backends.local.decode import Ending, Endings
from orchestry.backends.local.logprobs import completion_logprobs, micro_batches
from orchestry.backends.local.memory import MicroBatches
from orchestry.backends.local.sampler import Drawn, Prompt, evaluating
from orchestry.backends.local.sizes import MAX_ROWS
from orchestry.core.errors import LearnError, ProviderError, StoreError, reason
from orchestry.ext.vllm.replicas import Answer, Replicas
from orchestry.ext.vllm.server import PATIENCE_S, Served, VllmServer

if TYPE_CHECKING:
    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.model import Base


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM's --max-lora-rank accepts."""
TOLERANCE = 0.2
"""Allowed mean difference of the server's log-probabilities, in nats per token. bfloat16 causes
about a tenth of it; a base that is quantized only here causes more."""
MOST = 768
"""Requests at a time to all servers together: each is an open file, of which a process usually may
have 1024."""


class VllmSampler:
    """A Sampler whose answers servers draw, with the last published adapters."""

    def __init__(
        self,
        base: Base,
        adapters: Adapters,
        urls: Sequence[str],
        *,
        micro_tokens: int = 4096,
        warn: Callable[[str], None] = lambda text: None,
        in_flight: int = MAX_ROWS,
        environ: Mapping[str, str] = os.environ,
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Connects to the servers; errors name the command that starts one.

        `in_flight`: requests at a time per server. `micro_tokens`: most tokens in one forward pass
        here; if memory runs out, fewer are used and `warn` is told, as it is of servers that come
        and go. Raises ProviderError if a server does not answer or serves another model than the
        others, ConfigError if it accepts no adapters.
        """
        self._base, self._adapters = base, adapters
        self._endings = Endings(base.tokenizer, base.eos_ids)
        self._micro = MicroBatches(micro_tokens, warn)
        self._in_flight = min(MOST, in_flight * len(urls))
        self._command = serve_command(base, adapters)
        servers = [VllmServer(url, self._command, environ, sleep, patience_s) for url in urls]
        self._replicas = Replicas(servers, warn)
        self._folders: dict[str, Path] = {}
        """The adapters to draw with, by name at the servers."""
        self._names: list[str | None] = []
        """Each agent's adapter; None, and empty, while they are untrained and change nothing."""
        self._stale = set[str]()
        """Older ones, which a server may still hold; one that comes back, also the oldest."""

    def publish(self, folder: Path, names: Sequence[str | None] = ()) -> None:
        """From now on the adapters saved in `folder` are used; before, the bare base. `names`: each
        agent's folder there, where it is another; None: the bare base.

        The next draw loads them and unloads the previous ones. The servers must see the folder
        under the same path. Raises StoreError if it can't be read here.
        """
        own = names or self._adapters.folders
        paths = [None if name is None else folder.absolute() / name for name in own]
        self._stale |= set(self._folders)
        self._names = [None if path is None else _name(path) for path in paths]
        self._folders = {_name(path): path for path in paths if path is not None}
        self._stale -= set(self._folders)

    def draw(self, prompts: Sequence[Prompt], n: int) -> list[list[Drawn]]:
        """See Sampler.draw. Log-probabilities are this process's own, not the servers'.

        Raises LearnError if the two differ, because another base, other adapters or a truncated
        distribution would make the team learn from actions that it did not take. Raises
        ProviderError if no server is left, or one can't load the adapters, has too short a
        context, or gives an invalid answer.
        """
        if any(len(prompt.seeds) != n or not prompt.prompt_ids for prompt in prompts):
            raise ValueError(f"every prompt needs tokens, and a seed for each of its {n} samples")
        if not prompts or n == 0:
            return [[] for _ in prompts]
        served = self._replicas.ready(self._folders, self._stale)
        self._check_room(prompts, served)
        asked = [(prompt, seed) for prompt in prompts for seed in prompt.seeds]
        bodies = [self._body(prompt, seed, served) for prompt, seed in asked]
        answers = self._answers(bodies)
        ended = [self._ended(prompt, one) for (prompt, _), one in zip(asked, answers, strict=True)]
        logprobs = self._logprobs(prompts, [ids for ids, _ in ended])
        self._check_policy([prompt for prompt, _ in asked], answers, logprobs, served)
        drawn = iter(
            Drawn(
                ids,
                own,
                self._endings.text(ids, prompt.stop),
                ending,
                answer.choice.logprobs.token_logprobs[: len(ids)],
            )
            for (prompt, _), (ids, ending), own, answer in zip(
                asked, ended, logprobs, answers, strict=True
            )
        )
        return [[next(drawn) for _ in prompt.seeds] for prompt in prompts]

    def _check_room(self, prompts: Sequence[Prompt], served: Served) -> None:
        """Raises if prompt and answer don't fit, because vLLM would shorten the answer silently.
        `served`: the server with the smallest context."""
        longest = max(len(prompt.prompt_ids) + prompt.max_tokens for prompt in prompts)
        if served.context is not None and longest > served.context:
            raise ProviderError(
                f"the vLLM server at {served.url} takes {served.context:,} tokens, and a "
                f"prompt with its answer may have {longest:,}: start it with --max-model-len "
                f"{longest} or more, then resume the run",
                transient=False,
                billed=False,
            )

    def _body(self, prompt: Prompt, seed: int, served: Served) -> dict[str, Any]:
        """Sets everything that shapes the distribution, because defaults may come from the model's
        authors."""
        agent = prompt.agent_index
        return {
            "model": (self._names and agent >= 0 and self._names[agent]) or served.base,
            "prompt": list(prompt.prompt_ids),
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
            "top_p": prompt.top_p,
            "top_k": prompt.top_k or 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            "stop": list(prompt.stop),
            "stop_token_ids": sorted(self._base.eos_ids),
            "logprobs": 0,  # of the token drawn alone
            "return_token_ids": True,
        }

    def _answers(self, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """In order; the first failure drops those not yet sent."""
        pool = ThreadPoolExecutor(min(self._in_flight, len(bodies)), "vllm")
        try:
            futures = [pool.submit(self._replicas.complete, body) for body in bodies]
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    def _ended(self, prompt: Prompt, answer: Answer) -> tuple[tuple[int, ...], Ending]:
        """The answer up to its end by this backend's rules, and why it ends there.

        Both sides find the same end, except after incomplete characters: there the server may
        continue past a stop string. The text before the cut is not affected.
        """
        choice, server = answer.choice, answer.server
        if choice.prompt_token_ids != prompt.prompt_ids:
            raise server.odd("it read other prompt tokens than it was sent")
        if not all(0 <= token < self._vocabulary for token in choice.token_ids):
            raise server.odd(f"token ids that {self._base.name} doesn't have")
        if len(choice.logprobs.token_logprobs) != len(choice.token_ids):
            raise server.odd("log-probabilities that are not one per token")
        ids: list[int] = []
        for token in choice.token_ids:
            ids.append(token)
            if ending := self._endings.of(ids, prompt.max_tokens, prompt.stop):
                return tuple(ids), ending
        if ids and choice.finish_reason == "stop" and choice.stop_reason in prompt.stop:
            return tuple(ids), "stop"
        raise server.odd(
            f"an answer of {len(ids)} tokens out of {prompt.max_tokens} that ends at no end token "
            f"and no stop string, by '{choice.finish_reason}'"
        )

    @property
    def _vocabulary(self) -> int:
        embeddings: Any = self._base.model.get_input_embeddings()
        return int(embeddings.weight.shape[0])

    def _logprobs(
        self, prompts: Sequence[Prompt], answers: Sequence[tuple[int, ...]]
    ) -> list[tuple[float, ...]]:
        """Nats of each answer's tokens by the weights here, as Drawn has them."""
        left, found = iter(answers), dict[int, list[tuple[float, ...]]]()
        packed = [
            Packed(p.agent_index, p.prompt_ids, tuple(next(left) for _ in p.seeds)) for p in prompts
        ]
        for temperature in {prompt.temperature for prompt in prompts}:
            places = [i for i, prompt in enumerate(prompts) if prompt.temperature == temperature]
            scored = iter(self._scored([packed[place] for place in places], temperature))
            for place in places:
                found[place] = [next(scored) for _ in packed[place].completions]
        return [one for place in range(len(prompts)) for one in found[place]]

    def _scored(self, packed: Sequence[Packed], temperature: float) -> list[tuple[float, ...]]:
        if temperature == 0:
            return [(0.0,) * len(ids) for group in packed for ids in group.completions]

        def scored(micro_tokens: int) -> list[tuple[float, ...]]:
            return [
                tuple(logprobs_T.tolist())
                for micro in micro_batches(packed, micro_tokens)
                for logprobs_T in completion_logprobs(
                    self._base, self._adapters, micro, temperature
                )
            ]

        with torch.no_grad(), evaluating(self._base.model):
            return self._micro.run(scored)

    def _check_policy(
        self,
        prompts: Sequence[Prompt],
        answers: Sequence[Answer],
        logprobs: Sequence[tuple[float, ...]],
        served: Served,
    ) -> None:
        """Of each server by itself, because the mean over all would hide a wrong one."""
        for server in dict.fromkeys(answer.server for answer in answers):
            excess = [
                nats
                for prompt, answer, owns in zip(prompts, answers, logprobs, strict=True)
                if answer.server is server
                for nats in _excess(prompt, answer.choice.logprobs.token_logprobs, owns)
            ]
            mean = sum(excess) / max(1, len(excess))
            if not mean <= TOLERANCE:  # not a number fails too
                raise LearnError(
                    f"the vLLM server at {server.url} serves {served.root}, and its answers are "
                    f"not drawn by {self._base.name} with this run's adapters: log-probabilities "
                    f"are off by {mean:.2f} nats per token, at most {TOLERANCE} is rounding; start "
                    f"it with `{self._command}`, then resume the run"
                )


def _excess(prompt: Prompt, theirs: Sequence[float], owns: Sequence[float]) -> list[float]:
    """By how many nats the server's log-probabilities differ from those here, per token.

    The server's are after top-p, whose cut adds between 0 and -log(top_p) to each, and after top-k,
    whose cut adds what is not known here. What `_ended` cut off is not compared.
    """
    if prompt.temperature == 0:
        return []
    return [
        max(0.0, own - their, 0 if prompt.top_k else their - own + math.log(prompt.top_p))
        for their, own in zip(theirs, owns, strict=False)
    ]


def serve_command(base: Base, adapters: Adapters) -> str:
    """Starts a server for this team; ranks are rounded up to one that vLLM knows."""
    rank = next((rank for rank in RANKS if rank >= adapters.rank), adapters.rank)
    dtype = str(base.model.dtype).removeprefix("torch.")
    return (
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {base.model.name_or_path or base.name} "
        f"--dtype {dtype} --enable-lora --max-lora-rank {rank} "
        f"--max-loras {len(set(adapters.folders))} --logprobs-mode processed_logprobs"
    )


def _name(folder: Path) -> str:
    """An adapter's name at the server; other contents or another folder have another name."""
    digest = hashlib.sha256(str(folder).encode())
    try:
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            digest.update(file.read_bytes())
    except OSError as error:
        raise StoreError(
            f"the adapter in {folder} can't be read ({reason(error)}): restore it from a copy"
        ) from None
    return f"{folder.name}-{digest.hexdigest()[:16]}"
