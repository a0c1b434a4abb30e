"""Grade 1: one expression or one loop."""
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

from functools import reduce

from .family import ints, problem, word, words


@problem(
    1,
    "train",
    "Return the string s reversed.",
    [(("abc",), "cba"), (("",), ""), (("a",), "a"), (("Hello, you!",), "!uoy ,olleH")],
    lambda r: (word(r),),
    also=lambda s: "".join(reversed(s)),
)
def reverse_string(s):
    return s[::-1]


@problem(
    1,
    "dev",
    "Return True if the integer n is even, else False.",
    [((4,), True), ((7,), False), ((0,), True), ((-3,), False), ((-8,), True)],
    lambda r: (r.randint(-99, 99),),
    also=lambda n: n & 1 == 0,
)
def is_even(n):
    return n % 2 == 0


@problem(
    1,
    "train",
    "Return the sum of a list of numbers. The sum of an empty list is 0.",
    [(([1, 2, 3],), 6), (([],), 0), (([-5],), -5), (([10, -10, 4],), 4)],
    lambda r: (ints(r),),
    also=lambda numbers: reduce(lambda a, b: a + b, numbers, 0),
)
def sum_list(numbers):
    return sum(numbers)


@problem(
    1,
    "test",
    "Return the square of the number n.",
    [((3,), 9), ((0,), 0), ((-4,), 16), ((12,), 144)],
    lambda r: (r.randint(-50, 50),),
    also=lambda n: n**2,
)
def square(n):
    return n * n


@problem(
    1,
    "train",
    "Return the largest number in a list that is not empty.",
    [(([1, 5, 3],), 5), (([-2],), -2), (([-9, -4, -7],), -4), (([8, 8],), 8)],
    lambda r: (ints(r),),
    also=lambda numbers: sorted(numbers)[-1],
)
def largest(numbers):
    return max(numbers)


@problem(
    1,
    "train",
    "Return the difference between the largest and the smallest number of a non-empty list.",
    [(([1, 5, 3],), 4), (([7],), 0), (([-3, 3],), 6), (([10, 2, 6],), 8)],
    lambda r: (ints(r, least=2),),
    also=lambda numbers: sorted(numbers)[-1] - sorted(numbers)[0],
)
def value_range(numbers):
    return max(numbers) - min(numbers)


@problem(
    1,
    "test",
    "Return how many words the text has. Words are separated by spaces.",
    [(("the red fox",), 3), (("",), 0), (("one",), 1), (("  two  words ",), 2)],
    lambda r: (" ".join(words(r, most=9)),),
    also=lambda text: len([w for w in text.split(" ") if w]),
)
def count_words(text):
    return len(text.split())


@problem(
    1,
    "test",
    "Return True if the string s reads the same forwards and backwards, else False.",
    [(("level",), True), (("abc",), False), (("",), True), (("ab",), False), (("noon",), True)],
    lambda r: ((lambda w: w + w[::-1] if r.random() < 0.5 else w)(word(r, "abc", 2, 5)),),
    also=lambda s: all(s[i] == s[-1 - i] for i in range(len(s) // 2)),
)
def is_palindrome(s):
    return s == s[::-1]


@problem(
    1,
    "train",
    "Return the string s in upper case.",
    [(("abc",), "ABC"), (("",), ""), (("Hi You",), "HI YOU"), (("a1-b",), "A1-B")],
    lambda r: (word(r),),
    also=lambda s: "".join(c.upper() for c in s),
)
def to_upper(s):
    return s.upper()


@problem(
    1,
    "dev",
    "Return the first and the last character of the non-empty string s, joined to one string.",
    [(("hello",), "ho"), (("a",), "aa"), (("xy",), "xy"), (("Go now",), "Gw")],
    lambda r: (word(r, "abcdefghij", 3),),
    also=lambda s: s[:1] + s[-1:],
)
def first_last(s):
    return s[0] + s[-1]


@problem(
    1,
    "dev",
    "Return the absolute value of the integer n, without a minus sign.",
    [((-3,), 3), ((0,), 0), ((8,), 8), ((-100,), 100)],
    lambda r: (r.randint(-99, 99),),
    also=lambda n: n if n >= 0 else -n,
)
def absolute(n):
    return abs(n)


@problem(
    1,
    "train",
    "Return a new list with every number doubled.",
    [(([1, 2],), [2, 4]), (([],), []), (([0, -3],), [0, -6]), (([50],), [100])],
    lambda r: (ints(r),),
    also=lambda numbers: [x + x for x in numbers],
)
def double_all(numbers):
    return [2 * x for x in numbers]


@problem(
    1,
    "dev",
    "Return the words of a list joined by single spaces.",
    [((["a", "b"],), "a b"), (([],), ""), ((["one"],), "one"), ((["x", "yy", "z"],), "x yy z")],
    lambda r: (words(r),),
    also=lambda words: "".join(w + " " for w in words)[:-1],
)
def join_words(words):
    return " ".join(words)


@problem(
    1,
    "test",
    "Return the temperature c, given in Celsius, in Fahrenheit: c * 9 / 5 + 32.",
    [((100,), 212.0), ((0,), 32.0), ((-40,), -40.0), ((37,), 98.6)],
    lambda r: (r.randint(-80, 120),),
    also=lambda c: 32 + 1.8 * c,
)
def to_fahrenheit(c):
    return c * 9 / 5 + 32


@problem(
    1,
    "train",
    "Return 1 if n is positive, -1 if n is negative and 0 if n is zero.",
    [((5,), 1), ((-2,), -1), ((0,), 0), ((-77,), -1), ((1,), 1)],
    lambda r: (r.randint(-99, 99),),
    also=lambda n: (n > 0) - (n < 0),
)
def sign(n):
    if n > 0:
        return 1
    if n < 0:
        return -1
    return 0


@problem(
    1,
    "train",
    "Return how often the character c occurs in the string s.",
    [(("banana", "a"), 3), (("", "a"), 0), (("xyz", "a"), 0), (("aAa", "a"), 2)],
    lambda r: (word(r, "abc", 3, 12), r.choice("abc")),
    also=lambda s, c: sum(1 for x in s if x == c),
)
def count_char(s, c):
    return s.count(c)


@problem(
    1,
    "train",
    "Return the area of a rectangle with the given width and height.",
    [((3, 4), 12), ((0, 5), 0), ((1, 1), 1), ((7, 10), 70)],
    lambda r: (r.randint(1, 30), r.randint(1, 30)),
    also=lambda width, height: sum(width for _ in range(height)),
)
def rectangle_area(width, height):
    return width * height


@problem(
    1,
    "test",
    "Return the even numbers of a list, in their order.",
    [(([1, 2, 3, 4],), [2, 4]), (([],), []), (([1, 3],), []), (([0, -2, 5],), [0, -2])],
    lambda r: (ints(r, least=3),),
    also=lambda numbers: list(filter(lambda n: not n & 1, numbers)),
)
def even_numbers(numbers):
    return [n for n in numbers if n % 2 == 0]


@problem(
    1,
    "dev",
    "Return the string s repeated n times.",
    [(("ab", 3), "ababab"), (("x", 0), ""), (("", 4), ""), (("no ", 2), "no no ")],
    lambda r: (word(r, most=4), r.randint(1, 5)),
    also=lambda s, n: "".join(s for _ in range(n)),
)
def repeat_string(s, n):
    return s * n


@problem(
    1,
    "test",
    "Return the average of a list of numbers. The average of an empty list is 0.",
    [(([1, 2, 3, 4],), 2.5), (([],), 0.0), (([7],), 7.0), (([-1, 1],), 0.0)],
    lambda r: (ints(r),),
)
def average(numbers):
    if not numbers:
        return 0.0
    return sum(numbers) / len(numbers)


@problem(
    1,
    "dev",
    "Return True if the number x is in the list numbers, else False.",
    [(([1, 2, 3], 2), True), (([], 1), False), (([4, 5], 6), False), (([9], 9), True)],
    lambda r: (ints(r, 0, 5), r.randint(0, 5)),
    also=lambda numbers, x: any(n == x for n in numbers),
)
def contains(numbers, x):
    return x in numbers


@problem(
    1,
    "test",
    "Return the string s without its spaces.",
    [(("a b c",), "abc"), (("",), ""), (("   ",), ""), ((" big dog",), "bigdog")],
    lambda r: (" ".join(words(r, 2)),),
    also=lambda s: "".join(s.split(" ")),
)
def remove_spaces(s):
    return s.replace(" ", "")


@problem(
    1,
    "train",
    "Return the last item of a list, or None if the list is empty.",
    [(([1, 2, 3],), 3), (([],), None), ((["a"],), "a"), (([0, 0, 9],), 9)],
    lambda r: (ints(r),),
    also=lambda items: items[len(items) - 1] if items else None,
)
def last_item(items):
    if not items:
        return None
    return items[-1]


@problem(
    1,
    "train",
    "Return the list of the squares of 1, 2, ..., n.",
    [((3,), [1, 4, 9]), ((0,), []), ((1,), [1]), ((5,), [1, 4, 9, 16, 25])],
    lambda r: (r.randint(2, 20),),
    also=lambda n: [sum(range(1, 2 * i, 2)) for i in range(1, n + 1)],
)
def squares(n):
    return [i * i for i in range(1, n + 1)]


@problem(
    1,
    "dev",
    "Return True if the non-empty lower-case word starts with a vowel (a, e, i, o, u).",
    [(("apple",), True), (("tree",), False), (("u",), True), (("y",), False), (("egg",), True)],
    lambda r: (word(r),),
    also=lambda word: word.startswith(("a", "e", "i", "o", "u")),
)
def starts_with_vowel(word):
    return word[0] in "aeiou"


@problem(
    1,
    "test",
    "Return the factorial of n, the product 1 * 2 * ... * n. The factorial of 0 is 1.",
    [((4,), 24), ((0,), 1), ((1,), 1), ((6,), 720), ((10,), 3628800)],
    lambda r: (r.randint(2, 20),),
    also=lambda n: reduce(lambda a, b: a * b, range(1, n + 1), 1),
)
def factorial(n):
    if n == 0:
        return 1
    return n * factorial(n - 1)


@problem(
    1,
    "test",
    "Return the largest of the three numbers a, b and c.",
    [((1, 3, 2), 3), ((5, 5, 5), 5), ((-1, -2, -3), -1), ((0, 4, 9), 9)],
    lambda r: (r.randint(-50, 50), r.randint(-50, 50), r.randint(-50, 50)),
    also=lambda a, b, c: sorted([a, b, c])[2],
)
def max_of_three(a, b, c):
    return max(a, b, c)
