"""Two agents of a LangGraph graph: a writer's draft goes to an editor."""

from __future__ import annotations

import json
import os
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from reward import reward

models = {role: ChatOpenAI(model=role) for role in ("writer", "editor")}


class State(TypedDict, total=False):
    prompt: str
    draft: str
    final: str


def write(state: State) -> State:
    told = [("system", "Sum up the post in one sentence."), ("user", state["prompt"])]
    return {"draft": str(models["writer"].invoke(told).content)}


def edit(state: State) -> State:
    told = [("system", "Improve the draft."), ("user", f"{state['prompt']}\n\n{state['draft']}")]
    return {"final": str(models["editor"].invoke(told).content)}


graph = StateGraph(State)
graph.add_node("write", write)
graph.add_node("edit", edit)
graph.add_edge(START, "write")
graph.add_edge("write", "edit")
graph.add_edge("edit", END)
problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])
final = graph.compile().invoke({"prompt": problem["prompt"]})["final"]
print(json.dumps(reward(problem, final)))
