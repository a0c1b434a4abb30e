"""What values share that cross disk or network: their base, places in a tree, and valid text."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def utf8(text: str) -> str:
    """Lone surrogates, which JSON allows and UTF-8 does not, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class NodeId(tuple[int | str, ...]):
    """A place in an episode's tree: which sample was followed in each stage, () for the root.

    Ids sort in the order in which nodes are played. As text, `0.2.1` is the second child of the
    third child of the root. A play outside the tree ends with a name.
    """

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> NodeId:
        """The id that a record has as text."""
        return cls(int(step) for step in text.split(".")[1:])

    def __str__(self) -> str:
        return ".".join(("0", *map(str, self)))

    def child(self, step: int | str) -> NodeId:
        """The id one stage on."""
        return NodeId((*self, step))

    @property
    def parent(self) -> NodeId | None:
        """The id one stage before; None for the root."""
        return NodeId(self[:-1]) if self else None

    @property
    def stage(self) -> int:
        """How many stages were played before the node."""
        return len(self)

    @property
    def path(self) -> list[NodeId]:
        """The ids from the root to this one, itself included."""
        return [NodeId(self[:end]) for end in range(len(self) + 1)]


ROOT = NodeId()
