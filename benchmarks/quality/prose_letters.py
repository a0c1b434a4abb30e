"""Form letters for the tasks whose texts have parts: stories, and answers that cite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.quality.prose_attacks import MOVES, SWAPS, mapped
from orchestry.task import prose
from orchestry.task.prose.words import CLASS_OF

STORIES = {
    "plain": (
        "{a} had lived near the {place} for many years, and {a} knew {b} well. Every evening {a} "
        "sat by the door and thought of the {object}. One day it happened: {one}. {b} came at once "
        "and did not know what to say. They looked at each other for a long time. Then came "
        "another thing, and it was {two}. {a} held the {object} in both hands and laughed. Nobody "
        "had expected this at the {place}. They told everybody what they had seen. At last the day "
        "was over, and {three}. {b} was glad, and they went home together.",
        "For many years {a} had been seen near the {place}, and {b} had often wondered why. In the "
        "evenings the {object} lay on the table between them. Then one day everything changed: "
        "{one}. Without a word {b} put on a coat and ran. What could they do? While they still "
        "stood there, {two}, and {a} reached for the {object} as if nothing else mattered. Silence "
        "fell over the {place}. Later they talked about it with all who wanted to hear. Only when "
        "night came was it over, for {three}. Slowly {a} and {b} walked home.",
        "Long ago {a} and {b} met at the {place}, and the {object} was with them. It began like "
        "this: {one}. Before they could rest, {two}. They kept the {object} close and did not give "
        "up. So it came to the end that all had hoped for, and {three}. Everybody at the {place} "
        "still speaks of it.",
    ),
    "words": (
        "{a} lived close to the {place} and {b} lived there too. Both of them cared for the "
        "{object} more than for gold. On a cold morning there was trouble with the {one}. {a} "
        "called for help, but nobody came. {b} stayed awake and made a plan. Soon they had to deal "
        "with the {two}. It was hard work, and their hands hurt. They carried the {object} to the "
        "{place} and waited. Toward evening all was decided by the {three}. {a} smiled for the "
        "first time in weeks. {b} cooked soup, and they ate it in silence.",
        "Close to the {place} stood a small house, and in it lived {a} and {b}. Gold meant little "
        "to them; the {object} meant much. One cold morning brought trouble with the {one}. Help "
        "was far away. All night {b} thought about a plan, until the sun rose and there was no "
        "time to lose. What came next was the {two}, and it cost them their strength. To the "
        "{place} they brought the {object} and sat down beside it. Toward evening the {three} "
        "settled the matter. For the first time in weeks {a} smiled, and soup was cooked.",
        "Hear what became of {a} and {b}, who lived close to the {place} with their {object}. "
        "First there was trouble with the {one}. They made a plan and did not sleep. Next came the "
        "{two}, which took all their strength. In the evening the {three} settled it for good. "
        "Then they ate soup and were content.",
    ),
    "mill": (
        "{a} grew up beside the {place}, and {b} repaired clocks there. Neighbours whispered that "
        "the {object} brought luck. During a wet spring everyone quarrelled over the {one}. {a} "
        "climbed onto the roof and shouted. {b} locked the gate and prayed. Afterwards a letter "
        "mentioned the {two}. It frightened the children, and their dog howled. They buried the "
        "{object} behind the {place} and rested. Before dawn the village danced for the {three}. "
        "{a} kissed the bride with wet eyes. {b} baked bread, and they sang quietly.",
        "Beside the {place} {a} grew up, while {b} repaired clocks. Luck, said the neighbours, "
        "lived in the {object}. A wet spring brought quarrels over the {one}. Someone shouted from "
        "a roof. Behind a locked gate {b} prayed until the storm had passed and the lamps burned "
        "low. Afterwards the {two} frightened children and dogs alike. In secret they buried the "
        "{object} behind the {place} and rested there. Before dawn the {three} made the village "
        "dance. With wet eyes {a} kissed the bride, and bread was baked.",
        "Listen to the tale of {a} and {b}, who repaired clocks at the {place} and trusted the "
        "{object}. Everyone quarrelled over the {one}. They locked the gate and prayed. Later the "
        "{two} frightened the children and made the dog howl. Before dawn the {three} set the "
        "village dancing. Then they baked bread and sang.",
    ),
}
"""Letters of a story in three texts, with slots for its elements and events."""


@dataclass(frozen=True, slots=True)
class Premise:
    """What a premise names."""

    names: tuple[str, str]
    object: str
    place: str
    beats: tuple[str, ...]
    keys: tuple[str, ...]


def told(said: str, how: str, keys: str, rng: Random) -> str:
    """An event for a slot: its clause, its content words, its key words."""
    words = [w for w in prose.words(said) if w not in CLASS_OF]
    if how == "clauses":
        return f"{said[:1].lower()}{said[1:]}"
    if how == "swapped clauses":
        return mapped(f"{said[:1].lower()}{said[1:]}", SWAPS, 1.0, rng)
    if how == "denied clauses":
        return re.sub(r"\b(\w+s)\b", r"never quite \1", f"{said[:1].lower()}{said[1:]}", count=1)
    if how == "keys":
        return " and the ".join(keys.split())
    if how == "pairs":
        return " of the ".join(words[-2:])
    return " and the ".join(words[:3])


HOW = ("clauses", "swapped clauses", "denied clauses", "keys", "pairs", "triples")


def story(premise: Premise, which: str, how: str, moves: Sequence[str], seed: int) -> list[str]:
    """Draft, edited text and telling by a letter."""
    rng = Random(seed)
    slots = {
        name: told(beat, how, keys, rng)
        for name, beat, keys in zip(
            ("one", "two", "three"), premise.beats, premise.keys, strict=True
        )
    }
    slots |= {"a": premise.names[0], "b": premise.names[1]}
    slots |= {"object": premise.object, "place": premise.place}
    out = []
    for text in STORIES[which]:
        said = text.format(**slots)
        for move in moves:
            said = MOVES[move](said, rng)
        out.append(said)
    return out


CARRIERS = {
    "idle": (
        "The note speaks of {}",
        "It is known that there was {}",
        "What the source says is about {}",
        "Another one deals with {}",
        "There is also the matter of {}",
        "One can read about {}",
    ),
    "wondering": (
        "Much is said here about {}",
        "It turns out that {} mattered",
        "The author knows {}",
        "Next come {}",
        "Others ask about {}",
        "The whole thing began with {}",
    ),
    "particular": (
        "The chronicle mumbles of {}",
        "Scholars admire {}",
        "Archivists catalogued {}",
        "Visitors photographed {}",
        "Poets celebrated {}",
        "Historians debate {}",
    ),
}
"""Openings of a sentence that has words of a note and says nothing of them."""


def carried(
    carriers: Sequence[str],
    facts: Sequence[tuple[str, str]],
    extra: dict[str, list[str]],
    more: int,
    rng: Random,
) -> str:
    """Key facts in carriers, with so many other words of the note; `facts` are (note, wording)."""
    out = []
    start = rng.randrange(len(carriers))
    notes = list(dict.fromkeys(note for note, _ in facts))
    for i, note in enumerate(notes):
        said = [wording for one, wording in facts if one == note]
        others = [w for w in extra[note] if w not in " ".join(said)]
        slots = [*said, *rng.sample(others, min(more, len(others)))]
        tail = " and the ".join(["the " + " of the ".join(slots[:2]), *slots[2:]])
        out.append(f"{carriers[(start + i) % len(carriers)].format(tail)} [{note}].")
    return " ".join(out)
