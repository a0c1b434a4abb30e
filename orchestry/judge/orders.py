"""In which orders a judge is shown a sibling set, so that no sibling gains from its place."""

from __future__ import annotations

from orchestry.core.seeds import shuffled

Order = tuple[int, ...]
"""The items by place: order[0] is the item that is shown first."""


def balanced(size: int, repeats: int, seed: int) -> tuple[Order, ...]:
    """`repeats` orders of `size` items, by seed; the first is a plain shuffle.

    The second of each two is the reverse of the first, so that all items have the same mean place
    after an even number. Pairs are rows of a Williams design (Williams 1949, "Experimental designs
    balanced for the estimation of residual effects of treatments"): after a whole design, `size`
    orders for an even size and twice as many for an odd one, each item was in each place, and
    right behind each other item, equally often. Longer series are designs on fresh shuffles.
    """
    orders = list[Order]()
    design = 0
    while len(orders) < repeats:
        items = shuffled(size, seed, "orders", design)
        for turn in _spread(size // 2 if size % 2 == 0 else size):
            row = tuple(items[(place + turn) % size] for place in _zigzag(size))
            orders += [row, row[::-1]]
        design += 1
    return tuple(orders[:repeats])


def _zigzag(size: int) -> list[int]:
    """The first row of a Williams square: 0, 1, size - 1, 2, size - 2, and so on."""
    return [(place + 1) // 2 if place % 2 else -(place // 2) % size for place in range(size)]


def _spread(count: int) -> list[int]:
    """The numbers below `count`, each far from those before it: bits read backwards."""
    width = count.bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{width}b}"[::-1])
