"""Two agents without a framework: a writer asked by OpenAI's client, an editor by Anthropic's."""

from __future__ import annotations

import json
import os

import anthropic
import openai
from reward import reward

problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])
told = [
    {"role": "system", "content": "Sum up the post in one sentence."},
    {"role": "user", "content": problem["prompt"]},
]
draft = openai.OpenAI().chat.completions.create(model="writer", messages=told)
final = anthropic.Anthropic().messages.create(
    model="editor",
    max_tokens=200,
    system="Improve the draft.",
    messages=[
        {
            "role": "user",
            "content": f"{problem['prompt']}\n\nDraft: {draft.choices[0].message.content}",
        }
    ],
)
print(json.dumps(reward(problem, final.content[0].text)))
