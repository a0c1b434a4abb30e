"""Confines the server's process, and so its candidates (Linux).

Level 1: its own namespaces (no process, network, host name or mount of the machine), an empty root,
no capabilities, Landlock, and seccomp in each child. Level 2, if a container forbids new
namespaces: the same without them. Sources: unshare(2), pivot_root(2), landlock(7), capset(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import tempfile

_NEW = {"ns": 0x20000, "uts": 0x04000000, "ipc": 0x08000000, "pid": 0x20000000, "net": 0x40000000}
_NEW_USER = 0x10000000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446  # the same on both
_PRIVATE, _REMOUNT, _READ_ONLY = (1 << 18) | (1 << 14), 1 << 5, 1
_HARMLESS = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_V3 = 0x20080522
_NOBODY = 0x70000000
"""User ids from here on are unused on any machine. With its own id, a server owns no file, can
signal no other process, and its threads can be counted."""

_libc = ctypes.CDLL(None, use_errno=True)


def namespaces(machine: str) -> None:
    """Continues in a child with new namespaces. Raises OSError if this is forbidden.

    The calling process stays as the child's guard and ends with it.
    """
    root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    flags = sum(_NEW.values()) | (0 if root else _NEW_USER)
    _call("unshare", _libc.unshare(ctypes.c_int(flags)))
    if not root:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    child = os.fork()
    if child:
        _guard(child)
    _call("sethostname", _libc.sethostname(b"sandbox", 7))
    _empty_root(machine)


def nobody() -> bool:
    """Root becomes a user that owns nothing; returns whether this process now has its own user
    id."""
    if os.geteuid():
        return False
    number = _NOBODY + int.from_bytes(os.urandom(3), "big")
    try:
        os.setgroups([])
        os.setresgid(number, number, number)
        os.setresuid(number, number, number)
    except OSError:  # a container's root may not switch; Landlock and seccomp still confine it
        return False
    return True


def powerless(machine: str) -> None:
    """Drops every capability, for good."""
    prctl(_PR_NO_NEW_PRIVS, 1)
    header = struct.pack("=Ii", _CAPABILITY_V3, 0)
    _call("capset", _syscall(_CAPSET[machine], header, bytes(24)))
    prctl(_PR_SET_DUMPABLE, 0)
    die_with_parent()  # a change of user would clear it


def landlock() -> int:
    """Denies files, TCP, and signals to others, as far as the kernel supports it; returns
    Landlock's ABI.

    Raises OSError if there is no Landlock.
    """
    abi = _call("landlock", _syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    newest = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}.get(abi, 16)
    files = (1 << newest) - 1
    network = 3 if abi >= 4 else 0
    scopes = 3 if abi >= 6 else 0
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = struct.pack("=QQQ", files, network, scopes)[:size]
    ruleset = _call("landlock", _syscall(_LANDLOCK_CREATE, rules, ctypes.c_size_t(size), 0))
    _call("landlock", _syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)))
    os.close(ruleset)
    return abi


def die_with_parent() -> None:
    """No process of the sandbox outlives the one that watches it."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    _call("prctl", _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), 0, 0, 0))


def _empty_root(machine: str) -> None:
    """Makes an empty read-only folder in memory the root."""
    place = tempfile.gettempdir().encode()
    _call("mount", _libc.mount(None, b"/", None, ctypes.c_ulong(_PRIVATE), None))
    kind, flags = b"tmpfs", ctypes.c_ulong(_HARMLESS)
    _call("mount", _libc.mount(kind, place, kind, flags, b"size=4k,mode=755"))
    os.chdir(place)
    _call("pivot_root", _syscall(_PIVOT_ROOT[machine], b".", b"."))
    _call("umount2", _libc.umount2(b".", _DETACH))
    os.chdir("/")
    flags = ctypes.c_ulong(_HARMLESS | _REMOUNT | _READ_ONLY)
    _call("mount", _libc.mount(None, b"/", None, flags, None))


def _guard(child: int) -> None:
    """Waits and ends like the child; the child dies with this parent."""
    os.closerange(0, 64)
    status = os.waitpid(child, 0)[1]
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _syscall(number: int, *args: object) -> int:
    return int(_libc.syscall(ctypes.c_long(number), *args))


def _call(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
