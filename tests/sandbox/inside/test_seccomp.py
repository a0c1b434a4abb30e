"""The filter of system calls, run by a small BPF machine: what no kernel here can show, the table
of the other machine, is checked as the program that it becomes."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

import pytest

from orchestry.sandbox.inside.seccomp import Instruction, for_child, for_server
from orchestry.sandbox.inside.syscalls import (
    ALWAYS,
    CLONE3,
    FORK,
    MACHINES,
    OLD,
    RULES,
    SERVER,
    SERVER_RULES,
)

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, MISSING = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
STRICTEST = (KILL, MISSING, DENY, ALLOW)
"""Of two filters that both answer with an errno, the last one's counts: only the server's does."""
COLUMNS = list(enumerate(MACHINES))
FORBIDDEN = {
    "open": (2, -1),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendmsg": (46, 211),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, -1),
    "vfork": (58, -1),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "memfd_create": (319, 279),
    "io_uring_setup": (425, 425),
    "pidfd_open": (434, 434),
    "bpf": (321, 280),
    "unshare": (272, 97),
    "mount": (165, 40),
    "chdir": (80, 49),
    "unlinkat": (263, 35),
    "setsid": (112, 157),
    "setuid": (105, 146),
    "shmget": (29, 194),
    "keyctl": (250, 219),
}
"""On x86_64 and aarch64; -1: not there."""


def in_child(machine: str, number: int, args: Mapping[int, int], arch: int = 0) -> int:
    """What the kernel makes of a child's call: the strictest answer of both programs."""
    programs = (for_server(machine), for_child(machine))
    answers = [answer(steps, number, arch or MACHINES[machine], args) for steps in programs]
    return min(answers, key=STRICTEST.index)


def answer(steps: Sequence[Instruction], number: int, machine: int, args: Mapping[int, int]) -> int:
    """What the program returns for one call; `args` that are not named are 0."""
    data = {0: number, 4: machine}
    for n in range(6):
        value = args.get(n, 0)
        data[16 + 8 * n], data[20 + 8 * n] = value & 0xFFFFFFFF, value >> 32
    held, at = 0, 0
    while True:
        code, yes, no, constant = steps[at]
        at += 1
        if code == LOAD:
            held = data[constant]
        elif code == RETURN:
            return constant
        else:
            tests = {EQUAL: held == constant, AT_LEAST: held >= constant}
            at += yes if tests.get(code, bool(held & constant)) else no


@pytest.mark.parametrize(("column", "machine"), COLUMNS)
def test_what_is_listed_is_allowed_and_nothing_else(column: int, machine: str) -> None:
    listed = {numbers[column] for numbers in ALWAYS.values()}
    listed |= set(OLD.values()) if machine == "x86_64" else set()
    ruled = {rule.numbers[column] for rule in RULES.values()}
    for number in range(600):
        found = in_child(machine, number, {})
        if number in listed:
            assert found == ALLOW
        elif number == CLONE3[column]:
            assert found == MISSING
        elif number not in ruled:
            assert found == DENY


@pytest.mark.parametrize(("column", "machine"), COLUMNS)
@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_reaches_outside_is_denied(column: int, machine: str, name: str) -> None:
    number = FORBIDDEN[name][column]
    if number >= 0:
        assert in_child(machine, number, {}) == DENY


@pytest.mark.parametrize(("column", "machine"), COLUMNS)
@pytest.mark.parametrize(
    ("name", "args", "allowed"),
    [
        ("mmap", {2: 3}, True),
        ("mmap", {2: 5}, False),
        ("mprotect", {2: 1}, True),
        ("mprotect", {2: 7}, False),
        ("ioctl", {1: 0x5421}, True),
        ("ioctl", {1: 0x5412}, False),  # TIOCSTI: types into a terminal
        ("sendto", {4: 0}, True),
        ("sendto", {4: 1}, False),
        ("sendto", {4: 1 << 40}, False),
        ("sendto", {3: 0x4040}, True),
        ("sendto", {3: 1}, False),  # MSG_OOB
        ("sendto", {3: 0x4041}, False),
        ("sendto", {3: 1 << 26}, False),  # MSG_ZEROCOPY
        ("recvfrom", {3: 0x142}, True),
        ("recvfrom", {3: 1}, False),
        ("recvfrom", {3: 0x41}, False),
        ("socketpair", {0: 1}, True),
        ("socketpair", {0: 2}, False),
        ("clone", {0: 0x3D0F00}, True),
        ("clone", {0: 0x11}, False),
        ("fcntl", {1: 4}, True),
        ("fcntl", {1: 8}, False),  # F_SETOWN
        ("prlimit64", {2: 0}, True),
        ("prlimit64", {2: 1 << 33}, False),
        ("prlimit64", {0: 1}, False),  # another process
        ("sched_getaffinity", {}, True),
        ("sched_getaffinity", {0: 7}, False),
        ("clock_gettime", {0: 11}, True),
        ("clock_gettime", {0: 0xFFFFFFD2}, False),  # the CPU time of process 5
        ("clock_nanosleep", {0: 1}, True),
        ("clock_getres", {0: 12}, False),
    ],
)
def test_arguments_decide(
    column: int, machine: str, name: str, args: Mapping[int, int], allowed: bool
) -> None:
    number = RULES[name].numbers[column]
    found = in_child(machine, number, args)
    assert found == (ALLOW if allowed else DENY)


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_in_another_machines_numbers_kill(machine: str) -> None:
    (other,) = (number for name, number in MACHINES.items() if name != machine)
    assert in_child(machine, 1, {}, other) == KILL
    assert in_child(machine, 0x40000001, {}) == KILL


@pytest.mark.parametrize(("column", "machine"), COLUMNS)
def test_a_server_may_do_what_a_child_may_and_what_it_needs(column: int, machine: str) -> None:
    steps, arch = for_server(machine), MACHINES[machine]
    more = {numbers[column] for numbers in SERVER.values()}
    more |= {RULES[name].numbers[column] for name in SERVER_RULES}
    more |= {FORK} if machine == "x86_64" else set()
    for number in range(600):
        if number in more:
            assert answer(steps, number, arch, {}) == ALLOW
        else:
            assert answer(steps, number, arch, {}) == in_child(machine, number, {})
