"""A deep stack for CPython for WASI, which was built for 512 KiB of it and 500 nested calls of C.

That ends honest recursion through C (`functools.lru_cache`, three such calls a level) about 50
deep. Three numbers of the module are changed, so that the recursion limit of the run decides:

- The initial value of the stack pointer, and the initial size of the memory. The linker put the
  stack first, from address 0 up to the static data, and compiled every address in, so it can't
  grow where it is. It moves into pages appended to the memory. Nothing lies there: the allocator
  takes new pages by `memory.grow`, which now are those after the stack, and no other code knows
  where the stack is.
- What a thread may nest in C before Python raises RecursionError, so that this is what ends
  nearly all recursion.

What would overflow the old stack left the memory and trapped. Below the new one lies the heap, so
wasmtime has to end recursion first: at 2 MiB of machine stack, where programs have taken 15 MiB of
this stack, and 85 MiB those written for it (`select.select` takes 49 KB a call, by far the most of
what can call itself). Whoever gets past that spoils memory of his own instance, and nothing else.

Format: WebAssembly core specification 2.0, section 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestry.core.errors import SandboxError

_OLD_PAGES, _PAGES = 160, 2048
_PAGE = 1 << 16
_OLD_TOP = 512 << 10
_OLD_NESTED, _NESTED = 500, 3200
_HEADER = b"\0asm\1\0\0\0"
_MEMORY, _GLOBAL, _CODE = 5, 6, 10  # ids of sections
STACK = _PAGES * _PAGE
"""Bytes that are appended to an instance's memory."""
PATCH = f"stack{STACK >> 20}-nested{_NESTED}"
"""For the names of files that depend on what `deepen` changes."""


def deepen(module: bytes) -> bytes:
    """The module with the deep stack.

    Raises SandboxError where its numbers are not those of the build that this was made for.
    """
    if not module.startswith(_HEADER):
        raise _unexpected("header")
    left = _changes()
    parts = [_HEADER]
    for kind, content in _sections(module):
        old, new = left.pop(kind, (b"", b""))
        if old:
            # Code holds much else, the other two sections nothing but what is sought.
            if content.count(old) != 1 or (kind != _CODE and content != old):
                raise _unexpected(f"section {kind}")
            content = content.replace(old, new)
        parts += bytes([kind]), _leb128(len(content)), content
    if left:
        raise _unexpected(f"lack of section {min(left)}")
    return b"".join(parts)


def _changes() -> dict[int, tuple[bytes, bytes]]:
    """What is sought in a section, and what takes its place."""
    # One memory, of so many pages and without a maximum.
    sizes = [b"\1\0" + _leb128(pages) for pages in (_OLD_PAGES, _OLD_PAGES + _PAGES)]
    # One global: mutable, an i32, which begins as this constant.
    tops = (_OLD_TOP, (_OLD_PAGES + _PAGES) * _PAGE)
    pointers = [b"\1\x7f\1\x41" + _leb128(top, signed=True) + b"\x0b" for top in tops]
    # The end of init_threadstate() of CPython 3.12: `tstate->c_recursion_remaining = 500`. The
    # new number takes as many bytes, so that the sizes of functions stay right.
    before = bytes.fromhex("2000 28020c 41")  # local.get 0, i32.load offset=12, i32.const
    after = bytes.fromhex("360218")  # i32.store offset=24
    nested = [before + _leb128(n, signed=True) + after for n in (_OLD_NESTED, _NESTED)]
    return {
        _MEMORY: (sizes[0], sizes[1]),
        _GLOBAL: (pointers[0], pointers[1]),
        _CODE: (nested[0], nested[1]),
    }


def _sections(module: bytes) -> Iterator[tuple[int, bytes]]:
    """Id and content of each."""
    at = len(_HEADER)
    while at < len(module):
        kind = module[at]
        size, at = _length(module, at + 1)
        content = module[at : at + size]
        if len(content) != size:
            raise _unexpected(f"end of section {kind}")
        yield kind, content
        at += size


def _length(module: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number of up to 32 bits, and where it ends."""
    number = 0
    for index, byte in enumerate(module[at : at + 5]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise _unexpected(f"number at byte {at}")


def _leb128(number: int, *, signed: bool = False) -> bytes:
    """A number that is not negative; where it is `signed`, the last byte keeps a bit for that."""
    out = bytearray()
    while number > (0x3F if signed else 0x7F):
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _unexpected(what: str) -> SandboxError:
    return SandboxError(
        f"CPython for WASI is another build than its stack can be deepened in (unexpected {what}): "
        "report it, with the version of Orchestry"
    )
