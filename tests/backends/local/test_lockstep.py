"""Episodes in step: one batch of all that are in play, whenever they asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from orchestry.backends.local.lockstep import Lockstep
from orchestry.core.errors import LearnError
from orchestry.core.types import Completion, Message, Request


def request(seed: int, agent: str = "writer") -> Request:
    said = (Message(role="user", content="go"),)
    return Request(agent=agent, purpose="act", model="m", messages=said, max_tokens=8, seed=seed)


class Drawer:
    """Answers each request with its seed and the sample's number, and keeps the batches."""

    def __init__(self, fails: Callable[[Sequence[int]], bool] = lambda seeds: False) -> None:
        self.batches = list[tuple[list[int], int]]()
        self._fails = fails

    async def draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        seeds = [one.seed for one in requests]
        self.batches.append((seeds, n))
        await asyncio.sleep(0)
        if self._fails(seeds):
            raise LearnError(f"batch {len(self.batches)} is broken")
        return [[Completion(text=f"{seed}.{j}", model="m") for j in range(n)] for seed in seeds]


async def episode(
    lockstep: Lockstep, seed: int, stages: int, n: int = 1, pause: int = 0
) -> list[str]:
    """Asks once a stage, after so many turns of the loop; what it was answered, in order."""
    said = list[str]()
    with lockstep.playing():
        for stage in range(stages):
            for _ in range(pause):
                await asyncio.sleep(0)
            answers = await lockstep.sample([request(seed + stage)], n)
            said += [completion.text for samples in answers for completion in samples]
    return said


async def test_a_batch_holds_all_that_are_in_play_however_late_they_ask() -> None:
    drawer = Drawer()
    lockstep = Lockstep(drawer.draw)
    plays = [episode(lockstep, 100 * i, stages=3, pause=7 * i) for i in range(4)]
    said = await asyncio.gather(*plays)
    assert drawer.batches == [([t, 100 + t, 200 + t, 300 + t], 1) for t in range(3)]
    assert said == [[f"{100 * i + t}.0" for t in range(3)] for i in range(4)]


async def test_an_episode_that_ends_early_lets_the_others_go_on() -> None:
    drawer = Drawer()
    lockstep = Lockstep(drawer.draw)

    async def slow_to_end() -> list[str]:
        """Its reward takes a while, for which the others wait: they might be in one more batch."""
        with lockstep.playing():
            answers = await lockstep.sample([request(0)], 1)
            for _ in range(9):
                await asyncio.sleep(0)
            assert len(drawer.batches) == 1
        return [samples[0].text for samples in answers]

    plays = [slow_to_end(), episode(lockstep, 100, 3), episode(lockstep, 200, 2)]
    said = await asyncio.wait_for(asyncio.gather(*plays), 5)
    assert said == [["0.0"], ["100.0", "101.0", "102.0"], ["200.0", "201.0"]]
    assert drawer.batches == [([0, 100, 200], 1), ([101, 201], 1), ([102], 1)]


async def test_an_episode_that_breaks_lets_the_others_go_on() -> None:
    drawer = Drawer()
    lockstep = Lockstep(drawer.draw)

    async def broken() -> None:
        with lockstep.playing():
            for _ in range(9):
                await asyncio.sleep(0)
            raise LearnError("its reward")

    found = await asyncio.wait_for(
        asyncio.gather(episode(lockstep, 5, 2), broken(), return_exceptions=True), 5
    )
    assert found[0] == ["5.0", "6.0"]
    assert drawer.batches == [([5], 1), ([6], 1)]


async def test_a_batch_is_in_the_order_of_seeds_not_of_arrival() -> None:
    orders = set()
    for pauses in ((0, 5, 10), (10, 5, 0), (5, 0, 10)):
        drawer = Drawer()
        lockstep = Lockstep(drawer.draw)
        plays = [
            episode(lockstep, seed, 1, n=2, pause=pause)
            for seed, pause in zip((30, 10, 20), pauses, strict=True)
        ]
        said = await asyncio.gather(*plays)
        assert said == [["30.0", "30.1"], ["10.0", "10.1"], ["20.0", "20.1"]]
        orders.add(tuple(drawer.batches[0][0]))
    assert orders == {(10, 20, 30)}


async def test_an_episode_gets_the_answers_of_all_its_requests_in_its_own_order() -> None:
    drawer = Drawer()
    lockstep = Lockstep(drawer.draw)

    async def pair(seeds: Sequence[int]) -> list[str]:
        with lockstep.playing():
            answers = await lockstep.sample([request(seed) for seed in seeds], 2)
        return [samples[1].text for samples in answers]

    first, second = await asyncio.gather(pair((9, 1)), pair((4, 7)))
    assert (first, second) == (["9.1", "1.1"], ["4.1", "7.1"])
    assert drawer.batches == [([4, 7, 9, 1], 2)]


async def test_a_failing_draw_reaches_every_waiter_and_the_next_batch_is_drawn() -> None:
    drawer = Drawer(fails=lambda seeds: 1 in seeds)
    lockstep = Lockstep(drawer.draw)
    found = await asyncio.wait_for(
        asyncio.gather(*(episode(lockstep, i, 1) for i in range(3)), return_exceptions=True), 5
    )
    assert [str(error) for error in found] == ["batch 1 is broken"] * 3
    assert all(isinstance(error, LearnError) for error in found)
    assert await asyncio.wait_for(episode(lockstep, 7, 1), 5) == ["7.0"]


async def test_different_numbers_of_samples_in_one_round_are_drawn_one_after_the_other() -> None:
    drawer = Drawer()
    lockstep = Lockstep(drawer.draw)
    plays = [episode(lockstep, i, 1, n=n) for i, n in ((1, 3), (2, 1), (3, 3))]
    said = await asyncio.gather(*plays)
    assert said == [["1.0", "1.1", "1.2"], ["2.0"], ["3.0", "3.1", "3.2"]]
    assert drawer.batches == [([2], 1), ([1, 3], 3)]


async def test_a_failing_part_of_a_round_leaves_what_was_drawn_before_it() -> None:
    lockstep = Lockstep(Drawer(fails=lambda seeds: 1 in seeds).draw)
    found = await asyncio.wait_for(
        asyncio.gather(
            episode(lockstep, 1, 1, n=3), episode(lockstep, 2, 1), return_exceptions=True
        ),
        5,
    )
    assert isinstance(found[0], LearnError)
    assert found[1] == ["2.0"]


async def test_nothing_is_drawn_for_an_episode_that_was_given_up() -> None:
    drawer = Drawer()
    lockstep = Lockstep(drawer.draw)
    waiting = asyncio.create_task(episode(lockstep, 1, 1))
    late = asyncio.create_task(episode(lockstep, 2, 1, pause=9))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    assert await asyncio.wait_for(late, 5) == ["2.0"]
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert drawer.batches == [([2], 1)]
