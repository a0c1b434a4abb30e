"""The loop that ours is compared with: a full copy of the base an agent, with peft's LoRA on it.

Each agent answers each problem by one cached `generate` of G samples; an update is a pass over each
problem's G answers, padded beside their prompt, with logits of the answers alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch  # noqa: TID253 - nothing here can be had without it

from benchmarks.peers.gpu_work import Measured, name_of, peak, timed
from benchmarks.peers.reference_work import (
    AGENTS,
    ALPHA,
    RANK,
    RATE,
    TARGETS,
    TEMPERATURE,
    TOP_P,
    WARM_UP_TOKENS,
    Work,
    reward,
)

Drawn = dict[str, list[torch.Tensor]]
"""An agent's answers, problem by problem: (G, T) token ids."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A model of its own."""

    model: Any
    optimizer: torch.optim.Optimizer
    prompts: list[torch.Tensor]
    """(1, L) token ids per problem."""


def agents(work: Work, tokenizer: Any, device: torch.device) -> dict[str, Agent]:
    """As most published code builds them; in bfloat16 on a GPU, as ours is."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.enable_cudnn_sdp(False)  # as ours, which would build plans for ever
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = {}
    for place, name in enumerate(AGENTS):
        loader: Any = AutoModelForCausalLM
        plain = loader.from_pretrained(work.model, dtype=dtype).to(device)
        lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
        model: Any = get_peft_model(plain, lora)
        learned = [each for each in model.parameters() if each.requires_grad]
        prompts = [
            tokenizer(each[place], return_tensors="pt").input_ids.to(device)
            for each in work.prompts
        ]
        found[name] = Agent(model, torch.optim.AdamW(learned, lr=RATE), prompts)
    return found


@torch.no_grad()
def draw(team: dict[str, Agent], work: Work, tokens: int) -> Drawn:
    """One cached generate of G samples per agent and problem."""
    found: Drawn = {}
    for name, agent in team.items():
        agent.model.eval()
        found[name] = [
            agent.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                temperature=TEMPERATURE,
                top_p=TOP_P,
                top_k=0,
                num_return_sequences=work.samples,
                max_new_tokens=tokens,
            )[:, prompt.shape[1] :]
            for prompt in agent.prompts
        ]
    return found


def worths(drawn: Drawn, tokenizer: Any) -> list[torch.Tensor]:
    """Advantages (G,) per problem, of joint actions."""
    found = []
    for answers in zip(*drawn.values(), strict=True):
        texts = [tokenizer.batch_decode(ids) for ids in answers]
        returns_G = torch.tensor([reward(*joint) for joint in zip(*texts, strict=True)])
        found.append(returns_G - returns_G.mean())
    return found


def learn(team: dict[str, Agent], drawn: Drawn, advantages: list[torch.Tensor]) -> None:
    """One policy gradient step an agent."""
    for name, agent in team.items():
        agent.model.train()
        for prompt, ids, advantages_G in zip(agent.prompts, drawn[name], advantages, strict=True):
            whole = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)
            length = ids.shape[1]
            logits = agent.model(whole, logits_to_keep=length + 1, use_cache=False).logits[:, :-1]
            logprobs = torch.log_softmax(logits.float() / TEMPERATURE, -1)
            chosen = logprobs.gather(-1, ids[..., None]).squeeze(-1).sum(-1)
            actions = len(ids) * len(agent.prompts)
            (-(advantages_G.to(chosen.device) * chosen).sum() / actions).backward()
        learned = [each for each in agent.model.parameters() if each.requires_grad]
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        agent.optimizer.step()
        agent.optimizer.zero_grad(set_to_none=True)


def measure(work: Work) -> Measured:
    """A step of two tokens that is not counted, then the one that is."""
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    tokenizer = loader.from_pretrained(work.model)
    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    team = agents(work, tokenizer, device)
    for tokens in (WARM_UP_TOKENS, work.tokens):
        drawn, generate_s = timed(device, lambda tokens=tokens: draw(team, work, tokens))
        advantages = worths(drawn, tokenizer)
        _, update_s = timed(device, lambda drawn=drawn, worth=advantages: learn(team, drawn, worth))
    return Measured(
        device=name_of(device),
        generate_s=generate_s,
        update_s=update_s,
        tokens=sum(ids.numel() for answers in drawn.values() for ids in answers),
        peak_bytes=peak(device),
        prompt_tokens=sum(p.shape[1] for agent in team.values() for p in agent.prompts),
    )


if __name__ == "__main__":
    measure(Work.load(sys.argv[1])).print()
