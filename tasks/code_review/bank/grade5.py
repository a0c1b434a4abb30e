"""Grade 5: dynamic programming, search and parsing."""
# ruff: noqa: ANN001, ANN201, ANN202, B905

from __future__ import annotations

import itertools
import re
from functools import cache

from .family import ints, problem, word


def _edits(a, b):
    @cache
    def far(i, j):
        if not i or not j:
            return i + j
        return min(far(i - 1, j) + 1, far(i, j - 1) + 1, far(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return far(len(a), len(b))


@problem(
    5,
    "test",
    "Return the edit distance of the strings a and b: the fewest insertions, deletions and "
    "replacements of one character that turn a into b.",
    [
        (("kitten", "sitting"), 3),
        (("", ""), 0),
        (("abc", ""), 3),
        (("flaw", "lawn"), 2),
        (("same", "same"), 0),
    ],
    lambda r: (word(r, "abc", 2, 7), word(r, "abc", 2, 7)),
    also=_edits,
)
def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (x != y)))
        row = new
    return row[-1]


@problem(
    5,
    "train",
    "Return the length of the longest strictly rising subsequence of the list; gaps are allowed.",
    [
        (([10, 9, 2, 5, 3, 7, 101, 18],), 4),
        (([],), 0),
        (([3, 3, 3],), 1),
        (([1, 2, 3],), 3),
        (([5, 4],), 1),
    ],
    lambda r: (ints(r, 0, 12, 4, 9),),
    also=lambda numbers: max(
        n
        for n in range(len(numbers) + 1)
        if any(
            all(a < b for a, b in itertools.pairwise(c)) for c in itertools.combinations(numbers, n)
        )
    ),
)
def lis_length(numbers):
    lengths = []
    for i, n in enumerate(numbers):
        before = [lengths[j] for j in range(i) if numbers[j] < n]
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)


def _coins(coins, amount):
    reached, steps = {0}, 0
    while amount not in reached:
        wider = reached | {n + c for n in reached for c in coins if n + c <= amount}
        if wider == reached:
            return -1
        reached, steps = wider, steps + 1
    return steps


@problem(
    5,
    "dev",
    "Return the fewest coins that add up to amount, where each value of the list coins may be used "
    "any number of times, or -1 if it can't be done.",
    [
        (([1, 2, 5], 11), 3),
        (([2], 3), -1),
        (([1], 0), 0),
        (([1, 3, 4], 6), 2),
        (([5, 10], 25), 3),
    ],
    lambda r: (sorted({*ints(r, 2, 9, 2, 4)}), r.randint(8, 40)),
    also=_coins,
)
def coin_change(coins, amount):
    best = [0] + [amount + 1] * amount
    for value in range(1, amount + 1):
        for coin in coins:
            if coin <= value:
                best[value] = min(best[value], best[value - coin] + 1)
    return best[amount] if best[amount] <= amount else -1


@problem(
    5,
    "test",
    "Return how many squares with a queen each can be chosen on an n x n board, n queens at once, "
    "so that no two attack each other: the number of solutions of the n queens puzzle, counting "
    "only those in which the queen of the first row stands in column k (0 is the first).",
    [((4, 1), 1), ((1, 0), 1), ((4, 0), 0), ((5, 0), 2), ((6, 1), 1)],
    lambda r: (lambda n: (n, r.randint(0, n - 1)))(r.randint(5, 7)),
    also=lambda n, k: sum(
        p[0] == k and len({p[i] + i for i in range(n)}) == len({p[i] - i for i in range(n)}) == n
        for p in itertools.permutations(range(n))
    ),
)
def queens_from(n, k):
    def place(columns):
        if len(columns) == n:
            return 1
        count = 0
        for c in range(n):
            row = len(columns)
            if all(c != d and abs(c - d) != row - i for i, d in enumerate(columns)):
                count += place([*columns, c])
        return count

    return place([k])


@problem(
    5,
    "train",
    "Return the largest total value of items that together weigh at most capacity. Item i has "
    "weights[i] and values[i] and can be taken once.",
    [
        (([1, 3, 4], [15, 20, 30], 4), 35),
        (([], [], 5), 0),
        (([5], [10], 4), 0),
        (([2, 2, 2], [1, 5, 3], 4), 8),
    ],
    lambda r: (lambda n: (ints(r, 1, 9, n, n), ints(r, 1, 30, n, n), r.randint(5, 20)))(
        r.randint(3, 6)
    ),
    also=lambda weights, values, capacity: max(
        sum(v for v, take in zip(values, taken, strict=True) if take)
        for taken in itertools.product([0, 1], repeat=len(weights))
        if sum(w for w, take in zip(weights, taken, strict=True) if take) <= capacity
    ),
)
def knapsack(weights, values, capacity):
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values):
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


@problem(
    5,
    "dev",
    "Return the longest part of the string s, without gaps, that reads the same backwards; the "
    "first one if there are several.",
    [
        (("babad",), "bab"),
        (("",), ""),
        (("cbbd",), "bb"),
        (("abc",), "a"),
        (("racecar",), "racecar"),
    ],
    lambda r: (word(r, "abc", 4, 12),),
    also=lambda s: next(
        (
            s[i : i + n]
            for n in range(len(s), 0, -1)
            for i in range(len(s) - n + 1)
            if s[i : i + n] == s[i : i + n][::-1]
        ),
        "",
    ),
)
def longest_palindrome(s):
    best = ""
    for i in range(len(s)):
        for j in range(i + 1, len(s) + 1):
            part = s[i:j]
            if len(part) > len(best) and part == part[::-1]:
                best = part
    return best


def _any_filling(s):
    fillings = itertools.product(*["()_" if c == "*" else c for c in s])
    return any(_closed("".join(f).replace("_", "")) for f in fillings)


def _closed(s):
    while "()" in s:
        s = s.replace("()", "")
    return not s


@problem(
    5,
    "test",
    'Return True if the string s of "(", ")" and "*" can be made balanced by reading each "*" as '
    '"(", ")" or nothing, else False.',
    [
        (("(*)",), True),
        (("(",), False),
        (("",), True),
        (("*)*(",), False),
        (("(**",), True),
        (("(*)))",), False),
        (("((*",), False),
    ],
    lambda r: (word(r, "()*", 3, 7),),
    also=_any_filling,
)
def balanced_with_wildcard(s):
    low = high = 0
    for c in s:
        low += 1 if c == "(" else -1
        high += -1 if c == ")" else 1
        if high < 0:
            return False
        low = max(low, 0)
    return low == 0


@problem(
    5,
    "train",
    "The list gives the heights of walls of width 1. Return how much rain water stays between "
    "them.",
    [
        (([0, 1, 0, 2, 1, 0, 1, 3, 2, 1, 2, 1],), 6),
        (([],), 0),
        (([3, 0, 3],), 3),
        (([1, 2, 3],), 0),
        (([4, 2, 0, 3, 2, 5],), 9),
    ],
    lambda r: (ints(r, 0, 6, 5, 10),),
    also=lambda heights: sum(
        any(h > y for h in heights[:i]) and any(h > y for h in heights[i:]) and heights[i] <= y
        for y in range(9)
        for i in range(len(heights))
    ),
)
def trapped_water(heights):
    water = 0
    for i, h in enumerate(heights):
        level = min(max(heights[: i + 1]), max(heights[i:]))
        water += level - h
    return water


@problem(
    5,
    "dev",
    "Return True if the string s can be split into words of the list, each usable any number of "
    "times, else False.",
    [
        (("applepen", ["apple", "pen"]), True),
        (("catsandog", ["cats", "dog", "sand", "and", "cat"]), False),
        (("", ["a"]), True),
        (("aaab", ["a", "aa"]), False),
        (("abab", ["ab"]), True),
    ],
    lambda r: (word(r, "ab", 4, 8), [word(r, "ab", 1, 3) for _ in range(3)]),
    also=lambda s, words: re.fullmatch("(" + "|".join(words) + ")*", s) is not None,
)
def word_break(s, words):
    reachable = [True] + [False] * len(s)
    for end in range(1, len(s) + 1):
        for w in words:
            if s[:end].endswith(w) and reachable[end - len(w)]:
                reachable[end] = True
    return reachable[len(s)]


def _smallest_order(n, edges):
    fits = (
        list(p)
        for p in itertools.permutations(range(n))
        if all(p.index(a) < p.index(b) for a, b in edges)
    )
    return next(fits, [])


@problem(
    5,
    "test",
    "Return an order of the tasks 0 to n - 1 in which for every edge [a, b] task a comes before "
    "task b; among several, the one with the smallest numbers first. Return [] if there is none.",
    [
        ((3, [[2, 0], [0, 1]]), [2, 0, 1]),
        ((2, [[0, 1], [1, 0]]), []),
        ((1, []), [0]),
        ((4, [[3, 1]]), [0, 2, 3, 1]),
    ],
    lambda r: (5, [r.sample(range(5), 2) for _ in range(r.randint(2, 5))]),
    also=_smallest_order,
)
def task_order(n, edges):
    order = []
    left = set(range(n))
    while left:
        ready = [t for t in left if not any(b == t and a in left for a, b in edges)]
        if not ready:
            return []
        order.append(min(ready))
        left.remove(min(ready))
    return order


def _relax(n, edges, start, goal):
    far = {start: 0}
    for _ in range(n):
        for a, b, w in edges:
            if a in far:
                far[b] = min(far.get(b, 10**9), far[a] + w)
    return far.get(goal, -1)


@problem(
    5,
    "train",
    "Return the length of the shortest way from start to goal in a directed graph with the nodes 0 "
    "to n - 1 and edges [from, to, length], or -1 if there is no way. Lengths are positive.",
    [
        ((3, [[0, 1, 4], [0, 2, 1], [2, 1, 2]], 0, 1), 3),
        ((2, [], 0, 1), -1),
        ((1, [], 0, 0), 0),
        ((3, [[0, 1, 5]], 1, 0), -1),
    ],
    lambda r: (
        5,
        [[*r.sample(range(5), 2), r.randint(1, 9)] for _ in range(r.randint(6, 10))],
        0,
        4,
    ),
    also=_relax,
)
def shortest_path(n, edges, start, goal):
    distance = {start: 0}
    done = set()
    while len(done) < len(distance):
        node = min((v for v in distance if v not in done), key=lambda v: distance[v])
        done.add(node)
        for a, b, length in edges:
            if a == node and distance[a] + length < distance.get(b, float("inf")):
                distance[b] = distance[a] + length
    return distance.get(goal, -1)


@problem(
    5,
    "test",
    'Evaluate an arithmetic expression of integers, "+", "-", "*", parentheses and spaces, with '
    "the usual precedence. There is no unary minus.",
    [
        (("2 + 3 * 4",), 14),
        (("7",), 7),
        (("(1 + 2) * 3",), 9),
        (("10 - 4 - 3",), 3),
        (("2*(3+(4-1))",), 12),
    ],
    lambda r: (
        f"{r.randint(1, 20)}{r.choice('+-*')}({r.randint(1, 9)} {r.choice('+-*')} "
        f"{r.randint(1, 9)}) {r.choice('+-')} {r.randint(1, 9)}",
    ),
    also=lambda text: eval(text),
)
def calculate(text):
    tokens = list(text.replace(" ", ""))

    def factor():
        if tokens[0] == "(":
            tokens.pop(0)
            value = expression()
            tokens.pop(0)
            return value
        digits = ""
        while tokens and tokens[0].isdigit():
            digits += tokens.pop(0)
        return int(digits)

    def term():
        value = factor()
        while tokens and tokens[0] == "*":
            tokens.pop(0)
            value *= factor()
        return value

    def expression():
        value = term()
        while tokens and tokens[0] in "+-":
            if tokens.pop(0) == "+":
                value += term()
            else:
                value -= term()
        return value

    return expression()


@problem(
    5,
    "dev",
    'Return True if the pattern matches the whole string s, where "." stands for any character and '
    '"*" for any number, also none, of the character before it. Else return False.',
    [
        (("aab", "c*a*b"), True),
        (("aa", "a"), False),
        (("", ""), True),
        (("ab", ".*"), True),
        (("mississippi", "mis*is*p*."), False),
        (("abc", "a.c"), True),
    ],
    lambda r: (word(r, "ab", 1, 4), "".join(r.choice(["a", "b", "a*", ".", "b*"]) for _ in "123")),
    also=lambda s, pattern: re.fullmatch(pattern, s) is not None,
)
def regex_match(s, pattern):
    if not pattern:
        return not s
    first = bool(s) and pattern[0] in (s[0], ".")
    if len(pattern) > 1 and pattern[1] == "*":
        return regex_match(s, pattern[2:]) or (first and regex_match(s[1:], pattern))
    return first and regex_match(s[1:], pattern[1:])


def _union(grid):
    land = {(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell}
    name = {cell: cell for cell in land}
    for _ in land:
        for y, x in land:
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in land:
                    name[(y, x)] = min(name[(y, x)], name[near])
    return len(set(name.values()))


@problem(
    5,
    "test",
    "Return the number of islands in a grid of 0 (water) and 1 (land). Land cells that touch "
    "sideways or upwards belong to one island; corners do not connect.",
    [
        (([[1, 1, 0], [0, 0, 1]],), 2),
        (([],), 0),
        (([[0]],), 0),
        (([[1, 0], [0, 1]],), 2),
        (([[1, 1, 1], [1, 0, 1], [1, 1, 1]],), 1),
    ],
    lambda r: ([ints(r, 0, 1, 5, 5) for _ in range(r.randint(3, 5))],),
    also=_union,
)
def count_islands(grid):
    land = {(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell}
    count = 0
    while land:
        count += 1
        stack = [land.pop()]
        while stack:
            y, x = stack.pop()
            for near in [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]:
                if near in land:
                    land.remove(near)
                    stack.append(near)
    return count
