"""K1: how much of the same memory holds tokens, paged against contiguous, over the same trace.

Paged is the engine's own running set, step by step, without a model; contiguous is a generous model of it.
"""

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.generated import table
from bench.kv.contiguous import ContiguousEngine, Reserve
from bench.kv.trace import MAX_OUTPUT, TracedRequest, make_trace
from services.engine.core.admission import Admission, Attempt, CachePolicy, Identity
from services.engine.core.limits import Limits
from services.engine.core.running_set import Plan, RunningSet
from services.engine.core.sequence import Sequence as EngineSequence
from services.engine.step import RowOutput, SamplingSpec, StepResult

NUM_SLOTS = 32_768
"""Of the pool, in tokens."""
MODEL_LIMIT = 2_048
CHUNK = 512
NUM_REQUESTS = 4_000
STOP_ID, OTHER_ID = 1, 2
WARM_STEPS = 200
STEP_US = 20_000
BAR_SHARE, BAR_RATIO = 0.91, 7.0


class StepwiseEngine(Protocol):
    """What is measured of an allocator, after every step."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Whose keys and values lie in the pool."""

    @property
    def num_taken(self) -> int:
        """Slots that sequences hold."""

    def step(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Utilization:
    """Means over the steps in which requests waited."""

    allocation: str
    share_of_pool: float
    """Of the pool's slots, those that hold a token."""
    share_of_taken: float
    """Of the slots that sequences hold."""
    num_sequences: float
    preemptions: int


class PagedEngine:
    """The running set with a made-up executor: every sequence ends where the trace says."""

    def __init__(
        self, trace: Sequence[TracedRequest], block_size: int, policy: CachePolicy = CachePolicy.USE
    ) -> None:
        num_blocks = 1 + NUM_SLOTS // block_size
        limits = Limits(
            num_blocks, block_size, max_sequences=1024, max_batch_tokens=2048, chunk_tokens=CHUNK,
            max_model_len=MODEL_LIMIT,
        )  # fmt: skip
        self.running_set = RunningSet(limits, revision="trace", boot_id="trace")
        self._block_size = block_size
        self._policy = policy
        self._waiting = deque(enumerate(trace))
        self._trace = trace
        self._now_us = 1

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self.running_set.roster.running)

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_planned for sequence in self.running_set.roster.running)

    @property
    def num_taken(self) -> int:
        return self.running_set.cache.pool.num_used * self._block_size

    def step(self) -> None:
        self._now_us += STEP_US
        self._admit()
        plan = self.running_set.plan(self._now_us)
        if plan is not None:
            self.running_set.commit(plan, self._result(plan), self._now_us)
        self.running_set.news.take_streams()

    def _admit(self) -> None:
        """One by one until the engine has no room; then the next waits for the next step."""
        while self._waiting and len(self.running_set.roster) < 1024:
            number, request = self._waiting[0]
            if -(-request.num_prompt // self._block_size) > self.running_set.num_room_blocks:
                return
            self._waiting.popleft()
            self.running_set.admit(_admission(number, request, self._policy), self._now_us)

    def _result(self, plan: Plan) -> StepResult:
        rows = ((planned.sequence, planned.row) for planned in plan.rows)
        outputs = tuple(
            RowOutput(row.sequence_id, (self._next_id(sequence),) if row.is_sampled else (), None, True)
            for sequence, row in rows
        )
        return StepResult(outputs, 0, 0)

    def _next_id(self, sequence: EngineSequence) -> int:
        target = self._trace[sequence.admission.handle].num_output
        return STOP_ID if sequence.num_output + 1 >= target else OTHER_ID


def _admission(number: int, request: TracedRequest, policy: CachePolicy) -> Admission:
    first = 10 + number  # no two prompts share a block
    return Admission(
        stream_id=1,
        handle=number,
        identity=Identity(b"t" * 16, str(number), 0),
        attempt=Attempt(0, 1),
        ids=(first,) * request.num_prompt,
        num_prompt_tokens=request.num_prompt,
        max_output_tokens=MAX_OUTPUT,
        sampling=SamplingSpec(stop_ids=frozenset({STOP_ID})),
        cache_policy=policy,
    )


def measure(num_requests: int = NUM_REQUESTS, block_sizes: Sequence[int] = (16, 256)) -> list[Utilization]:
    """All allocations over one trace: paged by block size, contiguous by what a sequence reserves."""
    trace = make_trace(num_requests)
    return [
        *(_paged(trace, block_size) for block_size in block_sizes),
        *(_contiguous(trace, name, reserve) for name, reserve in _reserves()),
    ]


def _reserves() -> Iterator[tuple[str, Reserve]]:
    yield "contiguous, exact length known", lambda request: request.num_tokens
    yield "contiguous, prompt + max_tokens", lambda request: request.num_prompt + MAX_OUTPUT
    yield f"contiguous, the model's {MODEL_LIMIT}", lambda request: MODEL_LIMIT


def _paged(trace: Sequence[TracedRequest], block_size: int) -> Utilization:
    engine = PagedEngine(trace, block_size)
    means = _run(engine)
    preemptions = engine.running_set.totals.preemptions
    return Utilization(f"paged, blocks of {block_size}", *means, preemptions=preemptions)


def _contiguous(trace: Sequence[TracedRequest], name: str, reserve: Reserve) -> Utilization:
    return Utilization(name, *_run(ContiguousEngine(NUM_SLOTS, reserve, trace, CHUNK)), preemptions=0)


def _run(engine: StepwiseEngine) -> tuple[float, float, float]:
    """(share of the pool, share of what is taken, sequences): means after warming up, while requests wait."""
    samples = []
    num_steps = 0
    while engine.num_waiting:
        engine.step()
        num_steps += 1
        if num_steps > WARM_STEPS:
            samples.append((engine.num_tokens, engine.num_taken, engine.num_running))
    tokens, taken, sequences = (statistics.mean(column) for column in zip(*samples, strict=True))
    return tokens / NUM_SLOTS, tokens / taken, sequences


def lines(rows: Sequence[Utilization]) -> list[str]:
    head = ("allocation", "of the pool", "of what is taken", "sequences at once", "preempted")
    return table(
        head,
        [
            (
                row.allocation,
                f"{row.share_of_pool:.1%}",
                f"{row.share_of_taken:.1%}",
                f"{row.num_sequences:.1f}",
                str(row.preemptions),
            )
            for row in rows
        ],
    )
