"""Grade 2: a loop with a condition."""
# ruff: noqa: ANN001, ANN201, SIM110

from __future__ import annotations

import calendar
import itertools
import math
from collections import Counter

from .family import ints, problem, word, words


@problem(
    2,
    "dev",
    'Return "FizzBuzz" if n is divisible by 3 and 5, "Fizz" if only by 3, "Buzz" if only by 5, '
    "else n as a string.",
    [((9,), "Fizz"), ((15,), "FizzBuzz"), ((10,), "Buzz"), ((7,), "7"), ((30,), "FizzBuzz")],
    lambda r: (r.randint(1, 100),),
    edges=[(1,), (3,), (5,), (45,)],
    also=lambda n: "Fizz" * (n % 3 == 0) + "Buzz" * (n % 5 == 0) or str(n),
)
def fizzbuzz(n):
    if n % 15 == 0:
        return "FizzBuzz"
    if n % 3 == 0:
        return "Fizz"
    if n % 5 == 0:
        return "Buzz"
    return str(n)


@problem(
    2,
    "train",
    "Return how many vowels (a, e, i, o, u, in either case) the string s has.",
    [(("hello",), 2), (("",), 0), (("xyz",), 0), (("AEIou",), 5)],
    lambda r: (word(r, "aEbcdiOU", 3, 12),),
    also=lambda s: sum(s.lower().count(v) for v in "aeiou"),
)
def count_vowels(s):
    return sum(1 for c in s.lower() if c in "aeiou")


@problem(
    2,
    "train",
    "Return the n-th Fibonacci number: fibonacci(0) is 0, fibonacci(1) is 1, and every further "
    "one is the sum of the two before it.",
    [((6,), 8), ((0,), 0), ((1,), 1), ((2,), 1), ((10,), 55), ((20,), 6765)],
    lambda r: (r.randint(3, 22),),
    also=lambda n: round(((1 + 5**0.5) / 2) ** n / 5**0.5),
)
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@problem(
    2,
    "test",
    "Return True if n is a prime number, else False. Numbers below 2 are not prime.",
    [((7,), True), ((1,), False), ((2,), True), ((9,), False), ((0,), False), ((97,), True)],
    lambda r: (r.randint(2, 60),),
    edges=[(25,), (3,), (49,)],
    also=lambda n: sum(n % d == 0 for d in range(1, n + 1)) == 2,
)
def is_prime(n):
    if n < 2:
        return False
    for d in range(2, int(n**0.5) + 1):
        if n % d == 0:
            return False
    return True


@problem(
    2,
    "train",
    "Return the sum of the decimal digits of the integer n, which is not negative.",
    [((123,), 6), ((0,), 0), ((9,), 9), ((1001,), 2)],
    lambda r: (r.randint(10, 99999),),
    also=lambda n: sum(n // 10**i % 10 for i in range(10)),
)
def sum_digits(n):
    return sum(int(d) for d in str(n))


@problem(
    2,
    "test",
    "Return the sum of the squares of the even numbers in the list.",
    [(([1, 2, 3, 4],), 20), (([],), 0), (([1, 3],), 0), (([-2, 6],), 40)],
    lambda r: (ints(r, -9, 9),),
    also=lambda numbers: sum(n**2 * (1 - n % 2) for n in numbers),
)
def sum_even_squares(numbers):
    return sum(n * n for n in numbers if n % 2 == 0)


@problem(
    2,
    "dev",
    "Return the text with the first letter of every word in upper case. The words are lower case "
    "and separated by single spaces.",
    [(("the red fox",), "The Red Fox"), (("",), ""), (("a",), "A"), (("it is",), "It Is")],
    lambda r: (" ".join(words(r)),),
    also=lambda text: text.title(),
)
def capitalize_words(text):
    return " ".join(w.capitalize() for w in text.split(" "))


@problem(
    2,
    "train",
    "Return the list without repeated items: keep the first of each, in order.",
    [(([1, 2, 1, 3],), [1, 2, 3]), (([],), []), (([5, 5, 5],), [5]), (([2, 1],), [2, 1])],
    lambda r: (ints(r, 0, 4, 3, 9),),
    also=lambda items: list(dict.fromkeys(items)),
)
def unique(items):
    result = []
    for item in items:
        if item not in result:
            result.append(item)
    return result


@problem(
    2,
    "test",
    "Return the second largest different number of the list, or None if there is none.",
    [(([3, 1, 2],), 2), (([5],), None), (([4, 4],), None), (([9, 9, 8],), 8), (([],), None)],
    lambda r: (ints(r, 0, 9, 2),),
    also=lambda numbers: max((n for n in numbers if n < max(numbers)), default=None),
)
def second_largest(numbers):
    ordered = sorted(set(numbers))
    if len(ordered) < 2:
        return None
    return ordered[-2]


@problem(
    2,
    "dev",
    "Return how many numbers of the list are greater than the number limit.",
    [(([1, 5, 9], 4), 2), (([], 0), 0), (([3, 3], 3), 0), (([-1, 0, 1], -5), 3)],
    lambda r: (ints(r), r.randint(-10, 10)),
    also=lambda numbers, limit: len([n for n in numbers if not n <= limit]),
)
def count_above(numbers, limit):
    return sum(1 for n in numbers if n > limit)


@problem(
    2,
    "test",
    "Return the words of the text in reverse order, separated by single spaces.",
    [(("the red fox",), "fox red the"), (("",), ""), (("one",), "one"), (("a b",), "b a")],
    lambda r: (" ".join(words(r, 2)),),
    also=lambda text: " ".join(reversed(text.split())),
)
def reverse_words(text):
    return " ".join(text.split()[::-1])


@problem(
    2,
    "train",
    "Return the items of list a that are also in list b, in the order of a, without repeats.",
    [
        (([1, 2, 3], [3, 1]), [1, 3]),
        (([], [1]), []),
        (([4, 4], [4]), [4]),
        (([1], [2]), []),
    ],
    lambda r: (ints(r, 0, 6, 3), ints(r, 0, 6, 3)),
    also=lambda a, b: [x for x in dict.fromkeys(a) if x in set(b)],
)
def common_items(a, b):
    result = []
    for x in a:
        if x in b and x not in result:
            result.append(x)
    return result


@problem(
    2,
    "dev",
    "Return the greatest common divisor of the positive integers a and b.",
    [((12, 18), 6), ((7, 5), 1), ((9, 9), 9), ((100, 10), 10)],
    lambda r: (r.randint(1, 12) * r.randint(2, 9), r.randint(2, 12) * r.randint(2, 9)),
    edges=[(24, 36), (14, 21)],
    also=math.gcd,
)
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a


@problem(
    2,
    "test",
    "Return True if the integer n is a power of two (1, 2, 4, 8, ...), else False.",
    [((8,), True), ((6,), False), ((1,), True), ((0,), False), ((-4,), False), ((64,), True)],
    lambda r: (2 ** r.randint(1, 12) + r.choice([0, 0, 2]),),
    also=lambda n: n > 0 and n & (n - 1) == 0,
)
def is_power_of_two(n):
    if n < 1:
        return False
    while n % 2 == 0:
        n = n // 2
    return n == 1


@problem(
    2,
    "train",
    "Return the longest word of the list; the first one if several are equally long; an empty "
    "string if the list is empty.",
    [((["a", "bbb", "cc"],), "bbb"), (([],), ""), ((["xy", "zw"],), "xy"), ((["q"],), "q")],
    lambda r: (words(r, 2),),
    also=lambda words: max(words, key=len, default=""),
)
def longest_word(words):
    best = ""
    for w in words:
        if len(w) > len(best):
            best = w
    return best


@problem(
    2,
    "dev",
    "Return the string s with lower case letters made upper case and the other way round.",
    [(("aBc",), "AbC"), (("",), ""), (("Hi 5!",), "hI 5!"), (("XYZ",), "xyz")],
    lambda r: (word(r, "abCDe1F"),),
    also=lambda s: "".join(c.lower() if c.isupper() else c.upper() for c in s),
)
def swap_case(s):
    return s.swapcase()


@problem(
    2,
    "test",
    "Return one list with all items of the lists in a list of lists, in order.",
    [(([[1, 2], [3]],), [1, 2, 3]), (([],), []), (([[], [4]],), [4]), (([[1], [1]],), [1, 1])],
    lambda r: ([ints(r, 0, 9, 0, 3) for _ in range(r.randint(2, 4))],),
    also=lambda lists: list(itertools.chain(*lists)),
)
def flatten(lists):
    return [item for inner in lists for item in inner]


@problem(
    2,
    "train",
    "Return True if the strings a and b consist of the same letters, in any order, else False.",
    [
        (("listen", "silent"), True),
        (("ab", "abb"), False),
        (("", ""), True),
        (("aab", "abb"), False),
        (("abc", "cab"), True),
    ],
    lambda r: (word(r, "ab", 3, 3), word(r, "ab", 3, 3)),
    also=lambda a, b: Counter(a) == Counter(b),
)
def is_anagram(a, b):
    return sorted(a) == sorted(b)


@problem(
    2,
    "dev",
    "Return a list with the smallest and the largest number of a list that is not empty.",
    [(([3, 1, 2],), [1, 3]), (([5],), [5, 5]), (([-1, -9],), [-9, -1]), (([0, 4],), [0, 4])],
    lambda r: (ints(r),),
    also=lambda numbers: [sorted(numbers)[0], sorted(numbers)[-1]],
)
def min_max(numbers):
    return [min(numbers), max(numbers)]


@problem(
    2,
    "test",
    "Return the product of all numbers in a list. The product of an empty list is 1.",
    [(([2, 3, 4],), 24), (([],), 1), (([5],), 5), (([7, 0],), 0), (([-1, 8],), -8)],
    lambda r: (ints(r, -6, 6, 1, 5),),
    also=math.prod,
)
def multiply_all(numbers):
    result = 1
    for n in numbers:
        result *= n
    return result


@problem(
    2,
    "train",
    "Return the list of all divisors of the positive integer n, smallest first.",
    [((6,), [1, 2, 3, 6]), ((1,), [1]), ((7,), [1, 7]), ((16,), [1, 2, 4, 8, 16])],
    lambda r: (r.randint(8, 60),),
    also=lambda n: sorted({x for d in range(1, n + 1) if n % d == 0 for x in (d, n // d)}),
)
def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


@problem(
    2,
    "test",
    "Return a dictionary that maps every character of the string s to how often it occurs.",
    [(("aba",), {"a": 2, "b": 1}), (("",), {}), (("z",), {"z": 1}), (("  ",), {" ": 2})],
    lambda r: (word(r, "abcd", 3, 9),),
    also=lambda s: {c: s.count(c) for c in s},
)
def char_counts(s):
    counts = {}
    for c in s:
        counts[c] = counts.get(c, 0) + 1
    return counts


@problem(
    2,
    "train",
    "Return True if the year is a leap year: divisible by 4, but not by 100 unless by 400.",
    [((2024,), True), ((1900,), False), ((2000,), True), ((2023,), False), ((1600,), True)],
    lambda r: (r.randint(450, 525) * 4 + r.choice([0, 0, 1]),),
    edges=[(2100,), (2400,), (1996,)],
    also=calendar.isleap,
)
def is_leap_year(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


@problem(
    2,
    "test",
    "Return the list turned left by k places: the first k items go to the end. k is between 0 and "
    "the length of the list.",
    [
        (([1, 2, 3, 4], 1), [2, 3, 4, 1]),
        (([], 0), []),
        (([1, 2], 2), [1, 2]),
        (([5, 6, 7], 2), [7, 5, 6]),
    ],
    lambda r: (ints(r, 0, 99, 5), r.randint(1, 5)),
    also=lambda items, k: [items[(i + k) % len(items)] for i in range(len(items))],
)
def rotate_left(items, k):
    return items[k:] + items[:k]


@problem(
    2,
    "dev",
    "Return x limited to the range from low to high: low if x is below, high if x is above.",
    [((5, 1, 3), 3), ((0, 1, 3), 1), ((2, 1, 3), 2), ((-5, -9, 9), -5)],
    lambda r: (r.randint(-30, 30), r.randint(-20, -1), r.randint(0, 20)),
    also=lambda x, low, high: sorted([x, low, high])[1],
)
def clamp(x, low, high):
    return max(low, min(x, high))
