"""Work that is outstanding: finished where others fail, ended where it is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from orchestry.core.concurrency import Outstanding


async def test_what_is_outstanding_finishes_where_the_block_fails() -> None:
    done = list[int]()

    async def work(number: int) -> None:
        await asyncio.sleep(0.01)
        done.append(number)

    async def block() -> None:
        async with Outstanding() as outstanding:
            outstanding.start(work(1))
            outstanding.start(work(2))
            raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        await block()
    assert done == [1, 2]


async def test_the_first_failure_is_raised_where_it_is_awaited_and_the_rest_finishes() -> None:
    done = list[int]()

    async def work(number: int) -> int:
        await asyncio.sleep(0.01 * number)
        done.append(number)
        if number == 1:
            raise ValueError("one")
        return number

    async def block() -> None:
        async with Outstanding() as outstanding:
            for task in [outstanding.start(work(number)) for number in (1, 2, 3)]:
                await task

    with pytest.raises(ValueError, match="one"):
        await block()
    assert done == [1, 2, 3]


async def test_what_is_outstanding_is_cancelled_with_its_block() -> None:
    async def block() -> None:
        async with Outstanding() as outstanding:
            await outstanding.start(asyncio.sleep(60.0))

    task = asyncio.create_task(block())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5.0)
