"""The system call filter: an allow-list as a classic BPF program (Linux, seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Sequence
from functools import partial

from orchestry.sandbox.inside.syscalls import (
    ALWAYS,
    CLONE3,
    FORK,
    MACHINES,
    OLD,
    RULES,
    SERVER,
    SERVER_RULES,
    Check,
    Rule,
)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # x86_64 answers these numbers as another machine
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOW = (1 << 32) - 1

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, constant."""
_DENY: Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def for_server(machine: str) -> list[Instruction]:
    """The filter for a server and its children. Raises KeyError for a machine without a table.

    A forbidden call fails with EPERM, so that Python raises PermissionError and an honest candidate
    can continue. A call with another machine's numbers kills the process.
    """
    column = [*MACHINES].index(machine)
    steps: list[Instruction] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    numbers = [pair[column] for pair in (ALWAYS | SERVER).values()]
    numbers += [RULES[name].numbers[column] for name in SERVER_RULES]
    numbers += [*OLD.values(), FORK] if machine == "x86_64" else []
    for number in numbers:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for name, rule in RULES.items():
        steps += _rule(rule, column) if name not in SERVER_RULES else []
    missing = (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    return [*steps, (_EQUAL, 0, 1, CLONE3[column]), missing, _DENY]


def for_child(machine: str) -> list[Instruction]:
    """The additional filter for a child; of two filters the stricter one decides.

    It is short, because installing a filter costs time per step.
    """
    column = [*MACHINES].index(machine)
    steps: list[Instruction] = [(_LOAD, 0, 0, _NUMBER)]
    numbers = [pair[column] for pair in SERVER.values()]
    numbers += [FORK] if machine == "x86_64" else []
    for number in numbers:
        steps += [(_EQUAL, 0, 1, number), _DENY]
    for name in SERVER_RULES:
        steps += _rule(RULES[name], column)
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _rule(rule: Rule, column: int) -> list[Instruction]:
    body = [step for check in rule.checks for step in _body(check)]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(body), rule.numbers[column]), *body]


def _body(check: Check) -> list[Instruction]:
    """Steps that deny if the check fails, and otherwise fall through."""
    low = _ARGUMENTS + 8 * check.argument
    load_low, load_high = (_LOAD, 0, 0, low), (_LOAD, 0, 0, low + 4)
    if check.some:
        return [load_low, (_ANY_BIT, 1, 0, check.some), _DENY]
    if check.zero:
        low_bits, high_bits = check.zero & _LOW, check.zero >> 32
        none_low, none_high = (_ANY_BIT, 0, 1, low_bits), (_ANY_BIT, 0, 1, high_bits)
        return [load_low, none_low, _DENY, load_high, none_high, _DENY]
    left = len(check.one_of)  # a hit jumps over the other ones and the denial
    hits = [(_EQUAL, left - n, 0, value) for n, value in enumerate(check.one_of)]
    return [load_low, *hits, _DENY]


class Filter:
    """A program in the kernel's format; made once, installed many times."""

    def __init__(self, steps: Sequence[Instruction]) -> None:
        code = b"".join(struct.pack("=HBBI", *step) for step in steps)
        self._code = ctypes.create_string_buffer(code, len(code))
        address = ctypes.addressof(self._code)
        self._header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), address))
        given = (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(self._header), 0, 0)
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._install = partial(prctl, *map(ctypes.c_ulong, given))

    def install(self) -> None:
        """Installs the filter for this process permanently. Raises OSError if this fails."""
        if self._install():
            raise OSError(ctypes.get_errno(), "seccomp")
