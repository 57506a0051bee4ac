"""One seeded request run in all the ways that must not change what it draws."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pagemesh import Answer, AsyncClient, CachePolicy, Event, Options, Priority, Prompt, TokenChunk, collect

WAYS = ("alone", "beside-unseeded", "beside-seeded", "in-another-slot", "beside-itself", "warm", "preempted")
LONG = 400
"""Tokens of a neighbour that is to run until it is stopped."""


def ids_of(answer: Answer) -> list[tuple[int, ...]]:
    return [choice.ids for choice in answer.choices]


async def first_chunk(stream: AsyncIterator[Event]) -> list[Event]:
    """Events up to the first token."""
    events = [await anext(stream)]
    while not isinstance(events[-1], TokenChunk):
        events.append(await anext(stream))
    return events


@asynccontextmanager
async def neighbours(client: AsyncClient, prompt: Prompt, *each: Options) -> AsyncIterator[None]:
    """Other requests that run throughout."""
    streams = [client.generate(prompt, max_tokens=LONG, ignore_eos=True, **options) for options in each]
    await asyncio.gather(*(first_chunk(stream) for stream in streams))
    yield
    for stream in streams:
        assert isinstance(await anext(stream), TokenChunk), "the neighbour had ended before"
        await stream.aclose()


async def run_way(way: str, client: AsyncClient, prompt: Prompt, options: Options, num_slots: int) -> Answer:
    """The answer; fails unless what the way is named after took place. `options` are of the batch class."""
    cold: Options = {**options, "cache_policy": CachePolicy.BYPASS, "priority": Priority.BATCH}
    match way:
        case "alone":
            return await client.collect(prompt, **cold)
        case "beside-unseeded" | "beside-seeded":
            seeded = [Options(seed=1), Options(seed=options["seed"])]
            others = [Options(), Options()] if way == "beside-unseeded" else seeded
            async with neighbours(client, "Tell me about the sea.", *others):
                return await client.collect(prompt, **cold)
        case "in-another-slot":
            stream = client.generate(prompt, **cold)
            events = await first_chunk(stream)
            async with neighbours(client, "Tell me about the hills.", Options(), Options(seed=3)):
                return collect([*events, *[event async for event in stream]])
        case "beside-itself":
            answers = await asyncio.gather(*(client.collect(prompt, **cold) for _ in range(3)))
            assert all(ids_of(answer) == ids_of(answers[0]) for answer in answers)
            return answers[-1]
        case "warm":
            first = await client.collect(prompt, **options)
            second = await client.collect(prompt, **options)
            assert second.usage.cached_tokens > 0 and ids_of(first) == ids_of(second)
            return second
    assert way == "preempted", way
    # All slots are taken, this one by the lowest class: the next urgent request gets it.
    urgent = Options(priority=Priority.REALTIME)
    async with neighbours(client, "Now!", *([urgent] * (num_slots - 1))):
        stream = client.generate(prompt, **cold)
        events = await first_chunk(stream)
        await client.collect("Now!", max_tokens=2, **urgent)
        answer = collect([*events, *[event async for event in stream]])
    assert answer.receipt.preemptions > 0
    return answer
