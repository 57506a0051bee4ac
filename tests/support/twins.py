"""One request asked in ways that must not differ: streamed, collected, once more, and beside its equals."""

import asyncio
from dataclasses import dataclass
from typing import Unpack

from pagemesh import Answer, AsyncClient, Choice, Event, Options, Prompt, TokenChunk, collect

NUM_TOGETHER = 3


@dataclass(frozen=True, slots=True)
class Said:
    """What an answer says, without when and where."""

    choices: tuple[Choice, ...]
    num_tokens: int


def said(answer: Answer) -> Said:
    return Said(answer.choices, answer.usage.completion_tokens)


def chunks(events: list[Event]) -> list[TokenChunk]:
    return [event for event in events if isinstance(event, TokenChunk)]


async def stream(client: AsyncClient, prompt: Prompt, **options: Unpack[Options]) -> list[Event]:
    """All events, checked."""
    events = [event async for event in client.generate(prompt, **options)]
    check_numbers(events)
    return events


def check_numbers(events: list[Event]) -> None:
    """Numbered without gap or repeat, every chunk where the last one ended."""
    assert [event.seq_id for event in events] == list(range(len(events)))
    ends: dict[int, int] = {}
    for chunk in chunks(events):
        assert chunk.ids and chunk.first_output_index == ends.get(chunk.choice, 0), chunk
        ends[chunk.choice] = chunk.first_output_index + len(chunk.ids)


async def twins(client: AsyncClient, prompt: Prompt, **options: Unpack[Options]) -> list[Event]:
    """Streams it, and fails unless it is the same collected and batched with its equals."""
    events = await stream(client, prompt, **options)
    first = said(collect(events))
    assert said(await client.collect(prompt, **options)) == first
    together = await asyncio.gather(*(client.collect(prompt, **options) for _ in range(NUM_TOGETHER)))
    assert [said(answer) for answer in together] == [first] * NUM_TOGETHER
    return events
