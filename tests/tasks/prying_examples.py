"""Statements that look for whether the documented name is spoilt, without showing what it does."""

from __future__ import annotations

_FRAMES = "any('spoilt' in inspect.getargvalues(one.frame).locals for one in inspect.stack())"
_EXIT = "type('T', (), {'__enter__': lambda s: s, '__exit__': lambda s, t, e, tb: bool(%s)})"
PRYING = {
    "frames through a library's own sys": f"""
>>> import statistics
>>> inspect = statistics.sys.modules['inspect']
>>> {_FRAMES}
""",
    "frames through an imported sys": f"""
>>> from statistics import sys
>>> inspect = sys.modules['inspect']
>>> {_FRAMES}
""",
    "a closure through members": """
>>> import json
>>> inspect = json.codecs.sys.modules['inspect']
>>> [cell.cell_contents for cell in dict(inspect.getmembers(NAME))['__closure__']]
""",
    "the harness rewritten": """
>>> import statistics
>>> harness = dict(statistics.sys.modules['inspect'].getmembers(NAME))['__globals__']
>>> harness['said'] = lambda *given: [5, 5]
>>> 5
""",
    "gc": """
>>> import re
>>> gc = re.enum.sys.modules['gc']
>>> len([one for one in gc.get_objects() if 'spoilt' in str(one)])
""",
    "builtins": """
>>> import collections
>>> collections.abc.sys.modules['builtins'].vars(NAME)
""",
    "a file's traceback": """
>>> import functools
>>> functools.reduce(lambda a, b: a, [1]).sys
""",
    "atexit": """
>>> from json import codecs
>>> codecs.sys.modules['atexit'].register(print, 5)
>>> codecs.builtins.len('x')
""",
    "format and a code's name": ">>> '{0.__code__.co_name}'.format(NAME)\n'x'",
    "format and a closure": ">>> '{0.__closure__[2].cell_contents}'.format(NAME)",
    "format by another name": ">>> [str.format(text, NAME) for text in ('{0.__closure__}',)]",
    "format with a nested field": ">>> '{0:{1.__code__.co_name}}'.format('x', NAME)",
    "format_map": ">>> '{f.__code__}'.format_map({'f': NAME})",
    "a wrapper's mark": ">>> hasattr(NAME, '__wrapped__')",
    "a wrapper's marks": ">>> dir(NAME)",
    "its type": ">>> type(NAME)",
    "its text": ">>> str(NAME)",
    "its address": ">>> int(str(NAME).split(' at ')[-1].strip('<>'), 16) % 2 == 0",
    "an object's address": ">>> str(object())[-3] in '02468ace'",
    "the address of what is built in": ">>> str(print.__class__)",
    "an attribute by its name": """
>>> import functools
>>> seen = functools.update_wrapper(lambda: 0, NAME, assigned=['__code__'], updated=[])
>>> seen()
""",
    "wraps": ">>> from functools import wraps\n>>> wraps(NAME, assigned=['__code__'])(lambda: 0)()",
    "a count in a library": """
>>> import decimal
>>> decimal.getcontext().prec
>>> decimal.setcontext(decimal.Context(prec=decimal.getcontext().prec + 1))
""",
    "a flag in a library": """
>>> import decimal
>>> decimal.getcontext().flags[decimal.Inexact]
>>> decimal.getcontext().flags[decimal.Inexact] = True
""",
    "a flag that turns": """
>>> import decimal
>>> decimal.getcontext().flags[decimal.Inexact]
>>> decimal.getcontext().flags[decimal.Inexact] = not decimal.getcontext().flags[decimal.Inexact]
""",
    "a registered class": """
>>> from fractions import Fraction
>>> from collections import Counter
>>> issubclass(Counter, Fraction)
>>> Fraction.register(Counter)
""",
    "the clock": ">>> import datetime\n>>> datetime.datetime.now().microsecond % 2",
    "today": ">>> from datetime import date\n>>> date.today()",
    "a traceback in a with": f">>> with {_EXIT % 'tb.tb_frame'}():\n...     1 / 0",
    "a traceback's marks": f">>> with {_EXIT % 'print(dir(tb))'}():\n...     1 / 0",
    "an exception's object": f">>> with {_EXIT % 'print(e.obj)'}():\n...     NAME.nothing",
    "a cache around it": """
>>> import functools
>>> functools.lru_cache(NAME).cache_info()
""",
    "a part of it": ">>> import functools\n>>> functools.partial(NAME).func is NAME",
    "the last value": ">>> NAME\n>>> _ is NAME",
    "deleted late": ">>> x = type('D', (), {'__del__': lambda s: print(dir())})()\n>>> x = 1",
    "names in reach": ">>> dir()",
    "a generator's frame": ">>> (n for n in ()).gi_frame",
    "a set's order": ">>> [one is NAME for one in {NAME, print, object(), object()}]",
    "a property": ">>> property(NAME).fget is NAME",
    "a keyed sort": ">>> [str(one)[:5] for one in sorted([NAME, print, len], key=str)]",
}
"""By what they try; `NAME` stands for the documented name."""


def asking(trick: str, name: str) -> str:
    """The statements of a trick on a name, each with an answer where it has one to give."""
    lines = PRYING[trick].strip().replace("NAME", name).split("\n")
    silent = (">>> import", ">>> from", ">>> with")
    told = [
        f"{line}\nanything"
        if line.startswith("...")
        or (line.startswith(">>>") and " = " not in line and not line.startswith(silent))
        else line
        for line in lines
    ]
    return "\n".join(told)
