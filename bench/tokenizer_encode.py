"""Times the tokenizer inside its service: `python -m bench.tokenizer_encode [--json]`.

T4: p50 of encoding 1 KiB, warm, with and without the exact cache; the bar is 0.8 ms.
P2: a new turn behind 16,000 tokens, against rendering and encoding the whole; the bar is 5.7 times.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry

from pagemesh.v1 import gateway_pb2, tokenizer_pb2
from services.tokenizer.chat_template import ChatTemplate
from services.tokenizer.metrics import TokenizerMetrics
from services.tokenizer.service import TokenizerServicer
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.template_worker import TemplateWorker
from services.tokenizer.wiring import Loaded, build, load

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
    "have",
    "from",
    "or",
    "had",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "her",
    "all",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "more",
    "no",
    "if",
    "out",
    "so",
    "said",
    "what",
    "tokenizer",
    "latency",
    "pagination",
    "2024",
    "scheduler",
    "prefix",
    "cache,",
    "hits;",
    "naïve",
    "throughput.",
    "Figures:",
    "17%",
    "3.2",
    "ms",
]
ROLES = (gateway_pb2.ROLE_USER, gateway_pb2.ROLE_ASSISTANT)
CONVERSATION_TOKENS = 16_000


class Call:
    """What the service asks of a gRPC call."""

    def invocation_metadata(self) -> tuple[()]:
        return ()


def text_of(num_bytes: int, rng: random.Random) -> str:
    """Words of about that many bytes."""
    words = [rng.choice(WORDS) for _ in range(num_bytes // 3)]
    return " ".join(words).encode()[:num_bytes].decode(errors="ignore")


async def p50_ms(call: Callable[[int], Awaitable[Any]], num_calls: int) -> float:
    """Median of calls 0, 1, 2 ..., after a tenth as warm-up."""
    for index in range(num_calls // 10):
        await call(-1 - index)
    times = []
    for index in range(num_calls):
        started_s = time.perf_counter()
        await call(index)
        times.append(time.perf_counter() - started_s)
    return statistics.median(times) * 1e3


async def servicer_of(
    loaded: Loaded,
    worker: TemplateWorker,
    threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
    **settings: Any,
) -> TokenizerServicer:
    """A service without its socket."""
    metrics = TokenizerMetrics(CollectorRegistry())
    encoder, frozen = await build(
        TokenizerSettings(max_prompt_tokens=32_768, **settings), loaded, worker, threads, metrics
    )
    return TokenizerServicer(frozen, encoder, metrics, NoOpTracerProvider().get_tracer("bench"))


async def time_1k(servicer: TokenizerServicer, num_texts: int) -> float:
    """p50 of 1 KiB in milliseconds; with few texts they are seen again and again."""
    rng = random.Random(4)
    requests = [tokenizer_pb2.EncodeRequest(text=text_of(1024, rng)) for _ in range(num_texts)]
    return await p50_ms(lambda index: servicer.Encode(requests[index % num_texts], Call()), 1000)  # type: ignore[arg-type]


def long_conversation(loaded: Loaded, rng: random.Random) -> list[gateway_pb2.Segment]:
    """Turns of 100 to 1,500 bytes, CONVERSATION_TOKENS together."""
    segments: list[gateway_pb2.Segment] = []
    num_tokens = 0
    while num_tokens < CONVERSATION_TOKENS:
        content = text_of(rng.randrange(100, 1500), rng)
        segments.append(gateway_pb2.Segment(role=ROLES[len(segments) % 2], content=content))
        num_tokens += len(loaded.vocabulary.encode_trusted(content)) + 5
    return segments if segments[-1].role == gateway_pb2.ROLE_ASSISTANT else segments[:-1]


async def time_new_turn(loaded: Loaded, servicer: TokenizerServicer) -> tuple[float, float, int]:
    """p50 in milliseconds of one new turn and of the whole the plain way, and how many ids that is."""
    assert loaded.template is not None
    rng = random.Random(2)
    history = long_conversation(loaded, rng)
    questions = [text_of(200, rng) for _ in range(80)]
    template = ChatTemplate(loaded.template.text, loaded.template.variables, lambda pattern: "")

    def request(index: int) -> tokenizer_pb2.EncodeRequest:
        question = gateway_pb2.Segment(role=gateway_pb2.ROLE_USER, content=questions[index])
        return tokenizer_pb2.EncodeRequest(
            conversation=gateway_pb2.Conversation(segments=[*history, question])
        )

    async def by_segments(index: int) -> list[int]:
        response = await servicer.Encode(request(index), Call())  # type: ignore[arg-type]
        return list(response.ids)

    async def whole(index: int) -> list[int]:
        segments = [*history, gateway_pb2.Segment(role=gateway_pb2.ROLE_USER, content=questions[index])]
        messages = [
            {
                "role": "user" if segment.role == gateway_pb2.ROLE_USER else "assistant",
                "content": segment.content,
            }
            for segment in segments
        ]
        return list(loaded.vocabulary.encode_trusted(template.render(messages).text))

    ids = await by_segments(-30)
    assert ids == await whole(-30)
    return await p50_ms(by_segments, 50), await p50_ms(whole, 20), len(ids)


async def measure(model: str) -> dict[str, float]:
    """All figures."""
    loaded = load(model)
    assert loaded.template is not None, "the model has no chat template"
    worker = TemplateWorker(loaded.template, time_limit_s=5)
    await worker.start()
    with ThreadPoolExecutor(2) as long_threads, ThreadPoolExecutor(1) as large_thread:
        try:
            cached = await servicer_of(loaded, worker, (long_threads, large_thread))
            uncached = await servicer_of(loaded, worker, (long_threads, large_thread), exact_cache_mib=0)
            new_turn_ms, whole_ms, num_ids = await time_new_turn(loaded, cached)
            return {
                "encode_1kib_exact_cache_p50_ms": await time_1k(cached, 16),
                "encode_1kib_no_exact_cache_p50_ms": await time_1k(uncached, 997),
                "conversation_tokens": num_ids,
                "new_turn_p50_ms": new_turn_ms,
                "render_and_encode_whole_p50_ms": whole_ms,
                "new_turn_times_faster": whole_ms / new_turn_ms,
            }
        finally:
            await worker.stop()


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="model folder, hub id or smollm2")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.model))
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:10.3f}")


if __name__ == "__main__":
    main()
