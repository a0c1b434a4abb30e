"""System calls that confined code may make, with their numbers by machine.

Calls that open, name or change anything outside the process are missing: no path, no socket except
a pair, no other process, no signal, no exec. Numbers are those of the Linux headers
(arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

from dataclasses import dataclass

ALWAYS = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "readv": (19, 65),
    "writev": (20, 66),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    "nanosleep": (35, 101),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "shutdown": (48, 210),
    "exit": (60, 93),
    "getcwd": (79, 17),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "futex": (202, 98),
    "set_tid_address": (218, 96),
    "restart_syscall": (219, 128),
    "exit_group": (231, 94),
    "epoll_ctl": (233, 21),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "epoll_create1": (291, 20),
    "dup3": (292, 24),
    "pipe2": (293, 59),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "rseq": (334, 293),
    "close_range": (436, 436),
}
"""Name: number on x86_64, number on aarch64."""

OLD = {"poll": 7, "pipe": 22, "select": 23, "dup2": 33, "pause": 34, "alarm": 37, "epoll_wait": 232}
"""Only on x86_64; aarch64 never had them."""


@dataclass(frozen=True)
class Check:
    """A condition on one argument."""

    argument: int
    one_of: tuple[int, ...] = ()
    zero: int = 0
    """These bits of the argument must not be set."""
    some: int = 0
    """Any of these bits must be set."""


@dataclass(frozen=True)
class Rule:
    """A call that is allowed if all checks of its arguments hold."""

    numbers: tuple[int, int]
    checks: tuple[Check, ...]


_EXEC = 4  # PROT_EXEC
_THREAD = 0x10000  # CLONE_THREAD
_ALL = (1 << 64) - 1

_SENT = 0xFFFFFFFF ^ 0xC0C0
"""Flags of sendto, all but MSG_DONTWAIT, EOR, NOSIGNAL and MORE. MSG_OOB had a hole in the kernel
(CVE-2025-38236)."""
_RECEIVED = 0xFFFFFFFF ^ 0x4162
"""Flags of recvfrom, all but MSG_PEEK, TRUNC, DONTWAIT, WAITALL and NOSIGNAL."""
_CLOCKS = Check(0, one_of=tuple(range(12)))  # not those of other processes

RULES = {
    "mmap": Rule((9, 222), (Check(2, zero=_EXEC),)),
    "mprotect": Rule((10, 226), (Check(2, zero=_EXEC),)),
    "ioctl": Rule((16, 29), (Check(1, one_of=(0x5421, 0x5450, 0x5451)),)),  # FIO(NBIO,NCLEX,CLEX)
    "sendto": Rule((44, 206), (Check(3, zero=_SENT), Check(4, zero=_ALL))),  # to the pair's end
    "recvfrom": Rule((45, 207), (Check(3, zero=_RECEIVED),)),
    "socketpair": Rule((53, 199), (Check(0, one_of=(1,)),)),  # AF_UNIX
    "clone": Rule((56, 220), (Check(0, some=_THREAD),)),
    # Not F_SETOWN, which would send signals to its owner.
    "fcntl": Rule((72, 25), (Check(1, one_of=(0, 1, 2, 3, 4, 1030)),)),
    # Only its own limits, and only reading.
    "prlimit64": Rule((302, 261), (Check(0, one_of=(0,)), Check(2, zero=_ALL))),
    "sched_getaffinity": Rule((204, 123), (Check(0, one_of=(0,)),)),
    "clock_gettime": Rule((228, 113), (_CLOCKS,)),
    "clock_getres": Rule((229, 114), (_CLOCKS,)),
    "clock_nanosleep": Rule((230, 115), (_CLOCKS,)),
}
CLONE3 = (435, 435)
"""A filter can't see its flags, which are in memory; `not implemented` makes libc use clone."""

SERVER = {
    "kill": (62, 129),
    "setsid": (112, 157),
    "prctl": (157, 167),
    "wait4": (61, 260),
}
"""Calls with which a server starts, limits and ends children; a child gives these up."""
FORK = 57
"""Other fork calls on x86_64; aarch64 has only clone."""
SERVER_RULES = ("clone", "prlimit64", "clock_gettime")
"""Rules for children only: a server also looks at its children's clocks."""

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine: its AUDIT_ARCH number; in the order of the numbers above."""
