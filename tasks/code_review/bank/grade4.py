"""Grade 4: two steps that must fit together."""
# ruff: noqa: ANN001, ANN201, ANN202, B905

from __future__ import annotations

import itertools
import math
import re

from .family import ints, problem, word


def _cover(intervals):
    """Merged intervals from the points that they cover, in half steps."""
    points = sorted({p for a, b in intervals for p in range(2 * a, 2 * b + 1)})
    merged = []
    for p in points:
        if merged and merged[-1][1] == p - 1:
            merged[-1][1] = p
        else:
            merged.append([p, p])
    return [[a // 2, b // 2] for a, b in merged]


@problem(
    4,
    "train",
    "Merge all overlapping intervals [start, end] of the list; intervals that touch in a point "
    "overlap. Return the merged ones, sorted by start.",
    [
        (([[1, 3], [2, 6], [8, 10]],), [[1, 6], [8, 10]]),
        (([],), []),
        (([[4, 5], [1, 4]],), [[1, 5]]),
        (([[1, 9], [2, 3]],), [[1, 9]]),
    ],
    lambda r: ([[a, a + r.randint(0, 5)] for a in ints(r, 0, 20, 2, 6)],),
    also=_cover,
)
def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _roman_by_digits(n):
    ones = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
    up = [str.maketrans("", ""), str.maketrans("IVX", "XLC"), str.maketrans("IVX", "CDM")]
    digits = [ones[n // 10**k % 10].translate(up[k]) for k in (2, 1, 0)]
    return "M" * (n // 1000) + "".join(digits)


@problem(
    4,
    "dev",
    "Return the integer n, from 1 to 3999, as a Roman numeral.",
    [((14,), "XIV"), ((1,), "I"), ((1994,), "MCMXCIV"), ((40,), "XL"), ((3999,), "MMMCMXCIX")],
    lambda r: (r.randint(2, 3998),),
    also=_roman_by_digits,
)
def int_to_roman(n):
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    symbols = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    result = ""
    for value, symbol in zip(values, symbols):
        while n >= value:
            result += symbol
            n -= value
    return result


def _walk_spiral(matrix):
    rows, cols = len(matrix), len(matrix[0]) if matrix else 0
    seen, path, y, x, dy, dx = set(), [], 0, 0, 0, 1
    for _ in range(rows * cols):
        path.append(matrix[y][x])
        seen.add((y, x))
        if not (0 <= y + dy < rows and 0 <= x + dx < cols) or (y + dy, x + dx) in seen:
            dy, dx = dx, -dy
        y, x = y + dy, x + dx
    return path


def _matrix(r, rows, cols):
    return [ints(r, 0, 99, cols, cols) for _ in range(rows)]


@problem(
    4,
    "test",
    "Return the items of a matrix in spiral order: clockwise from the top left corner inwards.",
    [
        (([[1, 2], [3, 4]],), [1, 2, 4, 3]),
        (([],), []),
        (([[7]],), [7]),
        (([[1, 2, 3], [4, 5, 6], [7, 8, 9]],), [1, 2, 3, 6, 9, 8, 7, 4, 5]),
        (([[1], [2], [3]],), [1, 2, 3]),
    ],
    lambda r: (_matrix(r, r.randint(1, 4), r.randint(1, 4)),),
    also=_walk_spiral,
)
def spiral(matrix):
    result = []
    while matrix:
        result += matrix[0]
        matrix = [list(row) for row in zip(*matrix[1:])][::-1]
    return result


@problem(
    4,
    "test",
    "Return the length of the longest part of the string s, without gaps, in which no character "
    "repeats.",
    [(("abcabcbb",), 3), (("",), 0), (("bbbb",), 1), (("pwwkew",), 3), (("abba",), 2)],
    lambda r: (word(r, "abcdef", 4, 14),),
    also=lambda s: max(
        (
            j - i
            for i in range(len(s))
            for j in range(i + 1, len(s) + 1)
            if len(set(s[i:j])) == j - i
        ),
        default=0,
    ),
)
def longest_unique(s):
    best = 0
    start = 0
    seen = {}
    for i, c in enumerate(s):
        if c in seen and seen[c] >= start:
            start = seen[c] + 1
        seen[c] = i
        best = max(best, i - start + 1)
    return best


@problem(
    4,
    "train",
    "Group words that have the same letters. Words keep their order in a group, and groups are "
    "ordered by their first word's place in the list.",
    [
        ((["eat", "tan", "tea"],), [["eat", "tea"], ["tan"]]),
        (([],), []),
        ((["a"],), [["a"]]),
        ((["ab", "ba", "ab"],), [["ab", "ba", "ab"]]),
    ],
    lambda r: ([word(r, "ab", 1, 3) for _ in range(r.randint(3, 7))],),
    also=lambda words: [
        [v for v in words if sorted(v) == list(key)]
        for key in dict.fromkeys(tuple(sorted(w)) for w in words)
    ],
)
def group_anagrams(words):
    groups = {}
    for w in words:
        groups.setdefault("".join(sorted(w)), []).append(w)
    return list(groups.values())


@problem(
    4,
    "dev",
    "Return the largest sum of a non-empty part, without gaps, of the non-empty list.",
    [
        (([-2, 1, -3, 4, -1, 2, 1, -5, 4],), 6),
        (([-3],), -3),
        (([-5, -2, -8],), -2),
        (([1, 2, 3],), 6),
        (([5, -9, 6],), 6),
    ],
    lambda r: (ints(r, -9, 9, 3, 9),),
    also=lambda numbers: max(
        sum(numbers[i:j]) for i in range(len(numbers)) for j in range(i + 1, len(numbers) + 1)
    ),
)
def max_subarray(numbers):
    best = current = numbers[0]
    for n in numbers[1:]:
        current = max(n, current + n)
        best = max(best, current)
    return best


@problem(
    4,
    "train",
    "Return the square matrix turned clockwise by 90 degrees.",
    [
        (([[1, 2], [3, 4]],), [[3, 1], [4, 2]]),
        (([],), []),
        (([[5]],), [[5]]),
        (([[1, 2, 3], [4, 5, 6], [7, 8, 9]],), [[7, 4, 1], [8, 5, 2], [9, 6, 3]]),
    ],
    lambda r: (lambda n: (_matrix(r, n, n),))(r.randint(2, 4)),
    also=lambda matrix: [list(column) for column in zip(*reversed(matrix), strict=True)],
)
def rotate_matrix(matrix):
    n = len(matrix)
    return [[matrix[n - 1 - j][i] for j in range(n)] for i in range(n)]


@problem(
    4,
    "train",
    "Return the prime factors of n (at least 2) in rising order, repeated ones repeatedly.",
    [((12,), [2, 2, 3]), ((2,), [2]), ((97,), [97]), ((49,), [7, 7]), ((30,), [2, 3, 5])],
    lambda r: (r.randint(50, 2000),),
    also=lambda n: [
        p
        for p in range(2, n + 1)
        if all(p % d for d in range(2, math.isqrt(p) + 1))
        for k in range(1, 12)
        if n % p**k == 0
    ],
)
def prime_factors(n):
    factors = []
    d = 2
    while n > 1:
        while n % d == 0:
            factors.append(d)
            n = n // d
        d += 1
    return factors


def _infix(tokens):
    stack = []
    for token in tokens:
        if token in "+-*":
            b, a = stack.pop(), stack.pop()
            stack.append(f"({a}{token}{b})")
        else:
            stack.append(f"({token})")
    return eval(stack[0])


def _rpn_case(r):
    tokens = [str(r.randint(1, 9))]
    for _ in range(r.randint(1, 3)):
        tokens += [str(r.randint(-9, 9)), r.choice("+-*")]
    return (tokens,)


@problem(
    4,
    "test",
    "Evaluate an expression in reverse Polish notation: a list of integers as strings and the "
    'operators "+", "-" and "*", each after its two operands.',
    [
        ((["2", "1", "+", "3", "*"],), 9),
        ((["7"],), 7),
        ((["4", "9", "-"],), -5),
        ((["2", "3", "4", "*", "+"],), 14),
        ((["-2", "-3", "*"],), 6),
    ],
    _rpn_case,
    also=_infix,
)
def evaluate_rpn(tokens):
    stack = []
    for token in tokens:
        if token in ("+", "-", "*"):
            b = stack.pop()
            a = stack.pop()
            if token == "+":
                stack.append(a + b)
            elif token == "-":
                stack.append(a - b)
            else:
                stack.append(a * b)
        else:
            stack.append(int(token))
    return stack[0]


@problem(
    4,
    "dev",
    "Return the list whose i-th number is the product of all other numbers of the list.",
    [
        (([1, 2, 3, 4],), [24, 12, 8, 6]),
        (([5, 7],), [7, 5]),
        (([0, 3, 2],), [6, 0, 0]),
        (([0, 0, 4],), [0, 0, 0]),
    ],
    lambda r: (ints(r, -5, 6, 2, 5),),
    also=lambda numbers: [math.prod(numbers[:i] + numbers[i + 1 :]) for i in range(len(numbers))],
)
def product_except_self(numbers):
    result = []
    for i in range(len(numbers)):
        product = 1
        for j in range(len(numbers)):
            if j != i:
                product *= numbers[j]
        result.append(product)
    return result


@problem(
    4,
    "train",
    "Return all orderings of the different letters of the string s, as a list of strings in "
    "alphabetical order.",
    [
        (("ba",), ["ab", "ba"]),
        (("",), [""]),
        (("x",), ["x"]),
        (("acb",), ["abc", "acb", "bac", "bca", "cab", "cba"]),
    ],
    lambda r: ("".join(r.sample("abcdefgh", r.randint(2, 3))),),
    also=lambda s: sorted("".join(p) for p in itertools.permutations(s)),
)
def orderings(s):
    if not s:
        return [""]
    result = []
    for c in sorted(s):
        for rest in orderings(s.replace(c, "")):
            result.append(c + rest)
    return result


@problem(
    4,
    "test",
    "Undo a run-length encoding: every character is followed by its count, which may have several "
    'digits, so "a12b1" stands for twelve a and one b.',
    [
        (("a3b1",), "aaab"),
        (("",), ""),
        (("x1",), "x"),
        (("z10",), "zzzzzzzzzz"),
        (("a2a2",), "aaaa"),
    ],
    lambda r: ("".join(f"{r.choice('abc')}{r.randint(1, 12)}" for _ in range(r.randint(1, 3))),),
    also=lambda s: "".join(c * int(n) for c, n in re.findall(r"(\D)(\d+)", s)),
)
def run_length_decode(s):
    result = ""
    i = 0
    while i < len(s):
        j = i + 1
        while j < len(s) and s[j].isdigit():
            j += 1
        result += s[i] * int(s[i + 1 : j])
        i = j
    return result


@problem(
    4,
    "dev",
    "Return the k words that occur most often in the list, most frequent first; words that occur "
    "equally often in alphabetical order.",
    [
        ((["b", "a", "b"], 1), ["b"]),
        ((["b", "a"], 2), ["a", "b"]),
        (([], 3), []),
        ((["x", "y", "x", "y", "a"], 2), ["x", "y"]),
    ],
    lambda r: ([r.choice(["ab", "ba", "c", "d"]) for _ in range(r.randint(4, 9))], r.randint(1, 3)),
    also=lambda words, k: [
        w for _, w in sorted((-words.count(w), w) for w in dict.fromkeys(words))
    ][:k],
)
def top_words(words, k):
    counts = {}
    for w in words:
        counts[w] = counts.get(w, 0) + 1
    return sorted(counts, key=lambda w: (-counts[w], w))[:k]


@problem(
    4,
    "train",
    'Return the n-th string of the look-and-say sequence "1", "11", "21", "1211", ...: each one '
    "reads out the runs of the one before. n starts at 1.",
    [((4,), "1211"), ((1,), "1"), ((2,), "11"), ((3,), "21"), ((5,), "111221"), ((6,), "312211")],
    lambda r: (r.randint(7, 12),),
    edges=[(7,), (8,), (9,), (10,)],
    also=lambda n: (
        "1" if n == 1 else re.sub(r"(\d)\1*", lambda m: f"{len(m[0])}{m[1]}", look_and_say(n - 1))
    ),
)
def look_and_say(n):
    s = "1"
    for _ in range(n - 1):
        result = ""
        i = 0
        while i < len(s):
            j = i
            while j < len(s) and s[j] == s[i]:
                j += 1
            result += str(j - i) + s[i]
            i = j
        s = result
    return s


@problem(
    4,
    "test",
    "Write a rising list of different integers, none negative, as comma-separated ranges: "
    '[1, 2, 3, 5] becomes "1-3,5".',
    [
        (([1, 2, 3, 5],), "1-3,5"),
        (([],), ""),
        (([4],), "4"),
        (([1, 2],), "1-2"),
        (([0, 2, 4],), "0,2,4"),
    ],
    lambda r: (sorted({*ints(r, 0, 12, 4, 9)}),),
    also=lambda numbers: ",".join(
        f"{n}"
        if n + 1 not in numbers
        else f"{n}-{next(m for m in range(n, 99) if m + 1 not in numbers)}"
        for n in numbers
        if n - 1 not in numbers
    ),
)
def to_ranges(numbers):
    parts = []
    i = 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        if i == j:
            parts.append(str(numbers[i]))
        else:
            parts.append(f"{numbers[i]}-{numbers[j]}")
        i = j + 1
    return ",".join(parts)


def _unpack(s):
    while "[" in s:
        s = re.sub(r"(\d+)\[([a-z]*)\]", lambda m: m[2] * int(m[1]), s)
    return s


@problem(
    4,
    "dev",
    'Decode a string in which k[text] stands for k times the text, also nested: "2[a3[b]]" is '
    '"abbbabbb".',
    [
        (("3[a]2[bc]",), "aaabcbc"),
        (("",), ""),
        (("xyz",), "xyz"),
        (("2[a2[b]]",), "abbabb"),
        (("10[z]",), "zzzzzzzzzz"),
    ],
    lambda r: (
        f"{word(r, 'xy', 0, 2)}{r.randint(2, 4)}[{word(r, 'ab')}2[c]]{word(r, 'xy', 0, 2)}",
    ),
    also=_unpack,
)
def decode_string(s):
    stack = []
    current = ""
    number = 0
    for c in s:
        if c.isdigit():
            number = number * 10 + int(c)
        elif c == "[":
            stack.append((current, number))
            current, number = "", 0
        elif c == "]":
            before, count = stack.pop()
            current = before + current * count
        else:
            current += c
    return current
