"""Grade 3: the textbook's first algorithms."""
# ruff: noqa: ANN001, ANN201, ANN202, B905, SIM108

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby

from .family import ints, problem, word


def _sorted_case(r):
    numbers = sorted({*ints(r, 0, 30, 4, 9)})
    return (numbers, r.choice(numbers) if r.random() < 0.6 else r.randint(0, 30))


@problem(
    3,
    "test",
    "Return the indices [i, j], with i < j, of the two numbers in the list that add up to target. "
    "Exactly one such pair exists.",
    [
        (([2, 7, 11, 15], 9), [0, 1]),
        (([3, 3], 6), [0, 1]),
        (([3, 2, 4], 6), [1, 2]),
        (([-1, 5, 8, -4], 4), [0, 1]),
        (([0, 4, 3, 0], 0), [0, 3]),
    ],
    lambda r: (lambda n, i, j: (n, n[i] + n[j]))(
        [k * k * k + k for k in r.sample(range(-5, 9), 6)], r.randint(0, 2), r.randint(3, 5)
    ),
    also=lambda numbers, target: next(
        [i, j] for j in range(len(numbers)) for i in range(j) if numbers[i] + numbers[j] == target
    ),
)
def two_sum(numbers, target):
    seen = {}
    for j, n in enumerate(numbers):
        if target - n in seen:
            return [seen[target - n], j]
        seen[n] = j
    return None


@problem(
    3,
    "train",
    "Return the index of target in the sorted list of different numbers, or -1 if it is not there. "
    "Use binary search.",
    [
        (([1, 3, 5, 7], 5), 2),
        (([], 1), -1),
        (([4], 4), 0),
        (([1, 2, 3], 9), -1),
        (([2, 4, 6, 8, 10], 10), 4),
    ],
    _sorted_case,
    also=lambda numbers, target: numbers.index(target) if target in numbers else -1,
)
def binary_search(numbers, target):
    low, high = 0, len(numbers) - 1
    while low <= high:
        middle = (low + high) // 2
        if numbers[middle] == target:
            return middle
        if numbers[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1


def _reduce_brackets(s):
    while any(pair in s for pair in ("()", "[]", "{}")):
        s = s.replace("()", "").replace("[]", "").replace("{}", "")
    return s == ""


@problem(
    3,
    "dev",
    "Return True if the brackets ()[]{} in the string s are closed in the right order, else False. "
    "s has only brackets.",
    [
        (("([])",), True),
        (("(]",), False),
        (("",), True),
        (("(",), False),
        (("{[]}()",), True),
        (("([)]",), False),
        (("))",), False),
        (("[[[]]]",), True),
        (("(){}",), True),
    ],
    lambda r: ("".join(r.choice(["()", "[]", "{}", "(", "]"]) for _ in range(3)),),
    also=_reduce_brackets,
)
def valid_parentheses(s):
    pairs = {")": "(", "]": "[", "}": "{"}
    stack = []
    for c in s:
        if c not in pairs:
            stack.append(c)
        elif not stack or stack.pop() != pairs[c]:
            return False
    return not stack


@problem(
    3,
    "train",
    "Return the lower-case text with each letter moved k places on in the alphabet; after z comes "
    "a. Other characters stay.",
    [(("abc", 1), "bcd"), (("xyz", 3), "abc"), (("a b!", 25), "z a!"), (("", 5), "")],
    lambda r: (word(r, "abmnxyz ", 4), r.randint(1, 30)),
    also=lambda text, k: "".join(
        dict(
            zip(
                "abcdefghijklmnopqrstuvwxyz",
                ("abcdefghijklmnopqrstuvwxyz" * 3)[k:],
                strict=False,
            )
        ).get(c, c)
        for c in text
    ),
)
def caesar(text, k):
    result = ""
    for c in text:
        if "a" <= c <= "z":
            result += chr((ord(c) - ord("a") + k) % 26 + ord("a"))
        else:
            result += c
    return result


@problem(
    3,
    "test",
    "Run-length encode the string s: every run of one character becomes the character and the "
    'length of the run, so "aab" becomes "a2b1".',
    [(("aaabcc",), "a3b1c2"), (("",), ""), (("x",), "x1"), (("abab",), "a1b1a1b1")],
    lambda r: (word(r, "ab", 3, 10),),
    also=lambda s: "".join(f"{c}{len(list(run))}" for c, run in groupby(s)),
)
def run_length_encode(s):
    result = ""
    i = 0
    while i < len(s):
        j = i
        while j < len(s) and s[j] == s[i]:
            j += 1
        result += s[i] + str(j - i)
        i = j
    return result


@problem(
    3,
    "dev",
    "Return the value of a Roman numeral of the letters I, V, X, L, C, D and M.",
    [(("XIV",), 14), (("III",), 3), (("MCMXCIV",), 1994), (("XL",), 40), (("DCVI",), 606)],
    lambda r: (
        r.choice(["", "M", "MM"])
        + r.choice(["", "C", "CD", "DC", "CM"])
        + r.choice(["X", "XL", "LX", "XC"])
        + r.choice(["", "I", "IV", "VI", "IX"]),
    ),
    also=lambda s: (
        sum({"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}[c] for c in s)
        - sum(
            cut * s.count(p)
            for p, cut in zip(
                ("IV", "IX", "XL", "XC", "CD", "CM"), (2, 2, 20, 20, 200, 200), strict=True
            )
        )
    ),
)
def roman_to_int(s):
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
    total = 0
    for i, c in enumerate(s):
        if i + 1 < len(s) and values[s[i + 1]] > values[c]:
            total -= values[c]
        else:
            total += values[c]
    return total


@problem(
    3,
    "train",
    "Return the longest string with which all words of the list begin.",
    [
        ((["flower", "flow", "flight"],), "fl"),
        (([],), ""),
        ((["dog", "car"],), ""),
        ((["same", "same"],), "same"),
        ((["a"],), "a"),
    ],
    lambda r: ([p + word(r, "ab", 0, 3) for p in [word(r, "xyz", 1, 4)] for _ in range(3)],),
    also=lambda words: (
        next(
            (
                words[0][:n]
                for n in range(len(words[0]), 0, -1)
                if all(w.startswith(words[0][:n]) for w in words)
            ),
            "",
        )
        if words
        else ""
    ),
)
def longest_common_prefix(words):
    if not words:
        return ""
    prefix = words[0]
    for w in words:
        while not w.startswith(prefix):
            prefix = prefix[:-1]
    return prefix


@problem(
    3,
    "test",
    "Merge two sorted lists of numbers into one sorted list.",
    [
        (([1, 4], [2, 3]), [1, 2, 3, 4]),
        (([], []), []),
        (([], [5]), [5]),
        (([1, 1], [1]), [1, 1, 1]),
    ],
    lambda r: (sorted(ints(r)), sorted(ints(r))),
    also=lambda a, b: sorted([*b, *a]),
)
def merge_sorted(a, b):
    result = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            result.append(a[i])
            i += 1
        else:
            result.append(b[j])
            j += 1
    return result + a[i:] + b[j:]


@problem(
    3,
    "train",
    "Return the list of all prime numbers smaller than n.",
    [((10,), [2, 3, 5, 7]), ((2,), []), ((3,), [2]), ((0,), []), ((12,), [2, 3, 5, 7, 11])],
    lambda r: (r.randint(13, 60),),
    also=lambda n: [p for p in range(2, n) if sum(p % d == 0 for d in range(1, p + 1)) == 2],
)
def primes_below(n):
    primes = []
    for i in range(2, n):
        if all(i % p for p in primes):
            primes.append(i)
    return primes


def _collatz(n):
    return 0 if n == 1 else 1 + _collatz(n // 2 if n % 2 == 0 else 3 * n + 1)


@problem(
    3,
    "dev",
    "Return how many steps it takes from n to 1, where a step halves an even n and turns an odd n "
    "into 3 * n + 1.",
    [((6,), 8), ((1,), 0), ((2,), 1), ((3,), 7), ((8,), 3)],
    lambda r: (r.randint(4, 60),),
    also=_collatz,
)
def collatz_steps(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@problem(
    3,
    "test",
    "Return the transpose of a matrix, a list of equally long rows: rows become columns.",
    [
        (([[1, 2], [3, 4]],), [[1, 3], [2, 4]]),
        (([],), []),
        (([[1, 2, 3]],), [[1], [2], [3]]),
        (([[5]],), [[5]]),
    ],
    lambda r: (lambda w: ([ints(r, 0, 9, w, w) for _ in range(r.randint(2, 4))],))(r.randint(1, 4)),
    also=lambda matrix: [list(row) for row in zip(*matrix, strict=True)],
)
def transpose(matrix):
    if not matrix:
        return []
    return [[row[i] for row in matrix] for i in range(len(matrix[0]))]


@problem(
    3,
    "train",
    "Return the number of pairs i < j in the list with numbers[i] + numbers[j] == target.",
    [
        (([1, 2, 3, 4], 5), 2),
        (([], 0), 0),
        (([2, 2, 2], 4), 3),
        (([1, 9], 3), 0),
    ],
    lambda r: (ints(r, 0, 4, 5, 9), r.randint(2, 6)),
    also=lambda numbers, target: (
        (sum(numbers.count(target - n) for n in numbers) - sum(2 * n == target for n in numbers))
        // 2
    ),
)
def count_pairs(numbers, target):
    count = 0
    for i in range(len(numbers)):
        for j in range(i + 1, len(numbers)):
            if numbers[i] + numbers[j] == target:
                count += 1
    return count


@problem(
    3,
    "test",
    'Return the positive integer n, or 0, as a binary string without a prefix, so 5 is "101".',
    [((6,), "110"), ((0,), "0"), ((1,), "1"), ((8,), "1000"), ((255,), "11111111")],
    lambda r: (r.randint(9, 999),),
    also=lambda n: bin(n)[2:],
)
def to_binary(n):
    if n == 0:
        return "0"
    digits = ""
    while n > 0:
        digits = str(n % 2) + digits
        n = n // 2
    return digits


@problem(
    3,
    "dev",
    "Return row n of Pascal's triangle as a list; row 0 is [1], row 2 is [1, 2, 1].",
    [((3,), [1, 3, 3, 1]), ((0,), [1]), ((1,), [1, 1]), ((4,), [1, 4, 6, 4, 1])],
    lambda r: (r.randint(5, 15),),
    also=lambda n: [math.comb(n, k) for k in range(n + 1)],
)
def pascal_row(n):
    row = [1]
    for _ in range(n):
        row = [1] + [row[i] + row[i + 1] for i in range(len(row) - 1)] + [1]
    return row


@problem(
    3,
    "train",
    "Return the list with all zeros moved to the end; the other numbers keep their order.",
    [(([0, 1, 0, 3],), [1, 3, 0, 0]), (([],), []), (([0],), [0]), (([2, 1],), [2, 1])],
    lambda r: (ints(r, 0, 3, 4, 9),),
    also=lambda numbers: sorted(numbers, key=lambda n: n == 0),
)
def move_zeros(numbers):
    rest = [n for n in numbers if n != 0]
    return rest + [0] * (len(numbers) - len(rest))


def _without_one(r):
    numbers = list(range(r.randint(4, 9)))
    numbers.remove(r.choice(numbers))
    r.shuffle(numbers)
    return (numbers,)


@problem(
    3,
    "test",
    "The list has n different numbers out of 0, 1, ..., n. Return the one that is missing.",
    [(([3, 0, 1],), 2), (([0],), 1), (([1],), 0), (([2, 1, 0],), 3)],
    _without_one,
    also=lambda numbers: sum(range(len(numbers) + 1)) - sum(numbers),
)
def missing_number(numbers):
    for n in range(len(numbers) + 1):
        if n not in numbers:
            return n
    return None


@problem(
    3,
    "dev",
    "Add up the decimal digits of n, then those of the sum, and so on, until one digit is left; "
    "return it.",
    [((38,), 2), ((0,), 0), ((9,), 9), ((99,), 9), ((12345,), 6)],
    lambda r: (r.randint(10, 99999),),
    also=lambda n: 0 if n == 0 else 1 + (n - 1) % 9,
)
def digital_root(n):
    while n > 9:
        n = sum(int(d) for d in str(n))
    return n


@problem(
    3,
    "test",
    "Return in how many positions the strings a and b differ. Positions that only the longer one "
    "has count as well.",
    [
        (("abc", "abd"), 1),
        (("", ""), 0),
        (("abc", "a"), 2),
        (("karolin", "kathrin"), 3),
        (("x", "yz"), 2),
    ],
    lambda r: (word(r, "ab", 3, 9), word(r, "ab", 3, 9)),
    also=lambda a, b: sum(a[i : i + 1] != b[i : i + 1] for i in range(max(len(a), len(b)))),
)
def hamming_distance(a, b):
    count = abs(len(a) - len(b))
    for x, y in zip(a, b):
        if x != y:
            count += 1
    return count


@problem(
    3,
    "train",
    "Return the number that makes up more than half of the list, or None if there is none.",
    [(([2, 1, 2],), 2), (([],), None), (([1, 2],), None), (([7],), 7), (([3, 3, 4, 3],), 3)],
    lambda r: (lambda k: ([k] * r.randint(2, 4) + ints(r, 0, 5, 1, 4),))(r.randint(0, 5)),
    also=lambda numbers: next(
        (n for n, c in Counter(numbers).items() if 2 * c > len(numbers)), None
    ),
)
def majority(numbers):
    for n in numbers:
        if numbers.count(n) > len(numbers) // 2:
            return n
    return None


@problem(
    3,
    "test",
    "Split the list into lists of the given size, in order; the last one may be shorter.",
    [
        (([1, 2, 3, 4, 5], 2), [[1, 2], [3, 4], [5]]),
        (([], 3), []),
        (([1], 5), [[1]]),
        (([1, 2], 1), [[1], [2]]),
    ],
    lambda r: (ints(r, 0, 9, 4, 9), r.randint(1, 4)),
    also=lambda items, size: [
        [x for j, x in enumerate(items) if j // size == i]
        for i in range(math.ceil(len(items) / size))
    ],
)
def chunks(items, size):
    return [items[i : i + size] for i in range(0, len(items), size)]
