"""Main functions by the scheme in which they work with aux, near misses among them."""

FALLBACK = {
    "handler": """
def f(x):
    try:
        return aux(x)
    except Exception:
        return sorted(x)
""",
    "else and finally": """
def f(x):
    try:
        r = aux(x)
    except Exception:
        return len(x)
    else:
        return r
    finally:
        print(x)
""",
    "handler passes, the rest computes": """
def f(x):
    try:
        return aux(x)
    except ValueError:
        pass
    return len(x) + 1
""",
    "handler assigns": """
def f(x):
    try:
        r = aux(x)
    except Exception as error:
        r = x * 2
    return str(r)
""",
    "own value first, aux may replace it": """
def f(x):
    r = max(x)
    try:
        r = aux(x)
    except Exception:
        pass
    return r
""",
    "handler calls an own function": """
def slow(x):
    return [v for v in x if v > 0]

def f(x):
    try:
        return aux(x)
    except Exception:
        return slow(x)
""",
    "none is replaced": """
def f(x):
    r = aux(x)
    if r is None:
        r = sum(x)
    return r
""",
    "none returns early": """
def f(x):
    r = aux(x)
    if r is None:
        return sum(x)
    return r
""",
    "delivered if there": """
def f(x):
    r = aux(x)
    if r is not None:
        return r + 1
    total = 0
    for v in x:
        total += v
    return total
""",
    "validated by an own rule": """
def f(x):
    r = aux(x)
    if len(r) != len(x):
        r = sorted(x)
    return r
""",
    "wrong type": "def f(x):\n    r = aux(x)\n    return r if isinstance(r, int) else len(x)",
    "or": "def f(x):\n    return aux(x) or x[::-1]",
    "or, stored": "def f(x):\n    r = aux(x)\n    return r or sum(v for v in x)",
    "walrus": "def f(x):\n    if (r := aux(x)) is not None:\n        return r\n    return x + 1",
    "equal calls": "def f(x):\n    if aux(x) is not None:\n        return aux(x)\n    return x + 1",
    "in a block of its own": """
def f(x):
    if x > 0:
        r = aux(x)
        if r is not None:
            return r
    return x * 2
""",
    "tried in a block of its own": """
def f(x):
    if x > 0:
        try:
            return aux(x)
        except ValueError:
            pass
    return x * 2
""",
    "match": """
def f(x):
    match aux(x):
        case None:
            return len(x)
        case r:
            return r
""",
    "suppressed": """
from contextlib import suppress

def f(x):
    with suppress(Exception):
        return aux(x)
    return x * 2
""",
    "alias in a nested function": """
def f(x):
    helper = aux
    def attempt(y):
        try:
            return helper(y)
        except Exception:
            return y - 1
    return attempt(x)
""",
}

DECORATOR = {
    "defined on either branch, thin on one": """
import sys

if sys.version_info > (3, 11):
    def f(x):
        return aux(x)
else:
    def f(x):
        return len(aux(x))
""",
    "negated": "def f(x):\n    return not aux(x)",
    "formatted": "def f(x):\n    return f'<{aux(x)}>'",
    "sorted": "def f(x):\n    return sorted(aux(x))",
    "arithmetic": "def f(x):\n    r = aux(x)\n    r += 1\n    return r",
    "argument worked on": "def f(x):\n    return aux(x.lower())",
    "argument changed in place": "def f(x):\n    x.sort()\n    return aux(x)",
    "result changed in place": "def f(x):\n    r = aux(x)\n    r.reverse()\n    return r",
    "method of the result": "def f(x):\n    return aux(x).strip()",
    "two calls": "def f(a, b):\n    return aux(a) == aux(b)",
    "nested calls": "def f(x):\n    return aux(aux(x))",
    "result looped over": """
def f(x):
    total = 0
    for v in aux(x):
        total += v * v
    return total
""",
    "comprehension over the result": "def f(x):\n    return [v * 2 for v in aux(x)]",
    "alias, unpacked": "def f(x):\n    helper, k = aux, 3\n    return helper(x) * k",
    "through a container": "def f(x):\n    out = []\n    out.append(aux(x))\n    return out",
    "other branch on its own": """
def f(x):
    if x > 0:
        r = aux(x)
        if r is not None:
            return r + 1
        return -r
    else:
        return x * 2
""",
    "guard of its own": "def f(x):\n    if not x:\n        return 0\n    return aux(x)",
    "both ways go on with it": "def f(x):\n    r = aux(x)\n    return -r if r < 0 else r",
    "sign turned": "def f(x):\n    r = aux(x)\n    if r < 0:\n        r = -r\n    return r",
    "handler without another way": """
def f(x):
    try:
        return aux(x) + 1
    except ValueError:
        return None
""",
    "handler with a constant": """
def f(x):
    try:
        return aux(x)
    except ValueError:
        return -1
""",
    "aux is the rescue, not what is tried": """
def f(x):
    try:
        return int(x)
    except ValueError:
        return aux(x)
""",
    "and": "def f(x):\n    return aux(x) and x > 3",
    "method of a class of its own": """
class Worker:
    def __init__(self, x):
        self.r = aux(x)
    def report(self):
        return str(self.r)

def f(x):
    return Worker(x).report()
""",
    "condition in a loop on a result from before": """
def f(x):
    k = aux(x)
    found = 0
    for c in x:
        if c == k:
            found += 1
    return found
""",
}

COORDINATOR = {
    "for": """
def f(xs):
    out = []
    for x in xs:
        out.append(aux(x))
    return out
""",
    "while": """
def f(n):
    total = 0
    while n > 0:
        total += aux(n)
        n -= 1
    return total
""",
    "while test": "def f(n):\n    while not aux(n):\n        n += 1\n    return n",
    "list": "def f(xs):\n    return [aux(x) for x in xs]",
    "filter in a comprehension": "def f(xs):\n    return [x for x in xs if aux(x)]",
    "sum": "def f(xs):\n    return sum(aux(x) for x in xs)",
    "dict": "def f(xs):\n    return {x: aux(x) for x in xs}",
    "map": "def f(xs):\n    return list(map(aux, xs))",
    "filter": "def f(xs):\n    return list(filter(aux, xs))",
    "key": "def f(xs):\n    return sorted(xs, key=aux)",
    "key in place": "def f(xs):\n    xs = list(xs)\n    xs.sort(key=aux)\n    return xs",
    "lambda key": "def f(xs):\n    return max(xs, key=lambda x: (aux(x), x))",
    "condition in a loop": """
def f(xs):
    n = 0
    for x in xs:
        if aux(x):
            n += 1
    return n
""",
    "rescue in a loop": """
def f(xs):
    out = []
    for x in xs:
        try:
            out.append(aux(x))
        except Exception:
            out.append(x + 1)
    return out
""",
    "own function from a loop": """
def one(x):
    return aux(x) + 1

def f(xs):
    return [one(x) for x in xs]
""",
    "alias in an inner loop": """
def f(rows):
    g = aux
    best = 0
    for row in rows:
        for v in row:
            best = max(best, g(v))
    return best
""",
    "recursion": "def f(n):\n    if n == 0:\n        return 0\n    return aux(n) + f(n - 1)",
    "counts by index": """
def f(n):
    d = {}
    for i in range(n):
        d[aux(i)] = i
    return d
""",
    "closure": """
def f(xs):
    total = 0
    def add(v):
        nonlocal total
        total += aux(v)
    for v in xs:
        add(v)
    return total
""",
    "heap": """
import heapq

def f(xs):
    h = []
    for x in xs:
        heapq.heappush(h, (aux(x), x))
    return h[0][1]
""",
    "generator": "def f(xs):\n    for x in xs:\n        yield aux(x)",
    "early return": """
def f(n):
    i = 0
    while True:
        i += 1
        if aux(i):
            n -= 1
        if n == 0:
            return i
""",
}

FILTER = {
    "if else": "def f(x):\n    if aux(x):\n        return x * 2\n    else:\n        return x + 1",
    "early return": "def f(x):\n    if not aux(x):\n        return False\n    return x > 3",
    "ternary": "def f(x, y):\n    return x if aux(x) else y",
    "stored": """
def f(x):
    ok = aux(x)
    if ok:
        y = 'yes'
    else:
        y = 'no'
    return y
""",
    "compared": "def f(a, b):\n    if aux(a) > aux(b):\n        return a\n    return b",
    "chain": """
def f(x):
    kind = aux(x)
    if kind == 'a':
        return x.upper()
    elif kind == 'b':
        return x.lower()
    return x
""",
    "match": """
def f(x):
    match aux(x):
        case 1:
            return 'one'
        case _:
            return 'many'
""",
    "with another condition": """
def f(x):
    if x > 2 and aux(x):
        return 'a'
    return 'b'
""",
    "or in the condition": """
def f(x):
    if aux(x) or x == 2:
        return 'a'
    return 'b'
""",
    "derived": """
def f(x):
    n = len(aux(x)) % 2
    if n:
        return x[0]
    return x[-1]
""",
    "raises": "def f(x):\n    if aux(x) is None:\n        raise ValueError(x)\n    return len(x)",
    "assert": "def f(x):\n    assert aux(x)\n    return x + 1",
    "walrus": "def f(x):\n    if (n := aux(x)) > 10:\n        return n * 2\n    return x",
    "own function decides": """
def choose(flag, x):
    if flag:
        return x * 2
    return x

def f(x):
    return choose(aux(x), x)
""",
    "constant instead of nothing": """
def f(x):
    r = aux(x)
    if r is None:
        return 0
    return r + 1
""",
    "before a loop": """
def f(xs):
    if aux(xs):
        return [x * 2 for x in xs]
    return [x for x in xs]
""",
}

NONE = {
    "comment": "def f(x):\n    # aux(x)\n    return x + 1",
    "string": "def f(x):\n    'aux(x)'\n    return 'aux(x)'",
    "unused": "def f(x):\n    r = aux(x)\n    return x + 1",
    "bare": "def f(x):\n    aux(x)\n    return x + 1",
    "printed": "def f(x):\n    print(aux(x))\n    return x + 1",
    "named, not called": "def f(x):\n    g = aux\n    return x + 1",
    "only asked about": "def f(x):\n    return x + 1 if callable(aux) else x",
    "defined": "def aux(x):\n    return x\n\ndef f(x):\n    return aux(x) + 1",
    "assigned": "aux = abs\n\ndef f(x):\n    return aux(x) + 1",
    "imported": "from math import sqrt as aux\n\ndef f(x):\n    return aux(x) + 1",
    "deleted": "def f(x):\n    y = aux(x) + 1\n    del aux\n    return y",
    "parameter": "def f(x, aux=abs):\n    return aux(x) + 1",
    "loop variable": "def f(x):\n    return [aux(x) for aux in (abs, int)]",
    "method of self": "class A:\n    def f(self, x):\n        return self.aux(x) + 1",
    "method of another": "def f(x):\n    return x.aux() + 1",
    "own method called aux": """
class A:
    def aux(self, x):
        return x

def f(x):
    return A().aux(x) + 1
""",
    "function never called": "def g(x):\n    return aux(x) + 1\n\ndef f(x):\n    return x + 1",
    "nested, never called": """
def f(x):
    def g(y):
        return aux(y) + 1
    return x + 1
""",
    "lambda never called": "def f(x):\n    g = lambda y: aux(y)\n    return x + 1",
    "wrapper": "def f(x):\n    return aux(x)",
    "wrapper, stored": "def f(x):\n    r = aux(x)\n    return r",
    "wrapper, star": "def f(*args, **kwargs):\n    return aux(*args, **kwargs)",
    "wrapper, lambda": "f = lambda x: aux(x)",
    "wrapper, inner lambda": "def f(x):\n    g = lambda y: aux(y)\n    return g(x)",
    "wrapper, alias": "f = aux",
    "wrapper, inner alias": "def f(x):\n    g = aux\n    y = x\n    return g(y)",
    "wrapper, keyword": "def f(x, y):\n    return aux(y, x=x)",
    "wrapper, constant": "def f(x):\n    return aux(x, 10)",
    "wrapper, own function": "def g(y):\n    return aux(y)\n\ndef f(x):\n    return g(x)",
    "wrapper, both ways": "def f(x):\n    if x:\n        return aux(x)\n    return aux(x)",
    "wrapper, dead work": "def f(x):\n    y = len(x) * 2\n    return aux(x)",
    "wrapper, none kept none": """
def f(x):
    r = aux(x)
    if r is None:
        return None
    return r
""",
    "wrapper, one pass": "def f(x):\n    for _ in range(1):\n        return aux(x)",
    "wrapper, rethrows": """
def f(x):
    try:
        return aux(x)
    except ValueError:
        raise
""",
    "other name": "def f(x):\n    return auxiliary(x) + 1",
    "no entry point": "def g(x):\n    return aux(x) + 1",
    "no Python": "def f(x:\n    return aux(x) + 1",
    "nothing": "",
}
