"""Drives an executor as an engine would, with shuffled blocks and every free block full of NaN."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.engine.step import NULL_BLOCK, PLACEHOLDER, Executor, Row, RowOutput, SamplingSpec, SequenceSpec

BLOCK_SIZE = 16
GREEDY = SamplingSpec(temperature=0.0)


@dataclass
class Driven:
    """One sequence."""

    sequence_id: int
    ids: list[int]
    num_prompt_tokens: int
    num_computed: int
    block_ids: list[int] = field(default_factory=list)
    outputs: list[RowOutput] = field(default_factory=list)
    """Of sampled rows, in order."""

    @property
    def drawn(self) -> list[int]:
        """Output ids, those it began with included."""
        return self.ids[self.num_prompt_tokens :]


class ExecutorDriver:
    """Owns the block ids of one loaded executor."""

    def __init__(
        self, executor: Executor, num_blocks: int = 256, seed: int = 0, window: int | None = None
    ) -> None:
        """With a window, what lies behind it is poisoned and used again before every step."""
        self._executor = executor
        self._window = window
        executor.allocate(num_blocks)
        executor.poison([NULL_BLOCK])
        self._free: list[int] = []
        self._random = random.Random(seed)
        self._next_id = 0
        self._give_back(range(1, num_blocks))

    def add(
        self,
        ids: Sequence[int],
        sampling: SamplingSpec = GREEDY,
        *,
        num_prompt_tokens: int | None = None,
        prefix_of: Driven | None = None,
    ) -> Driven:
        """Starts a sequence, on the whole blocks that it shares with `prefix_of`."""
        self._next_id += 1
        num_prompt = len(ids) if num_prompt_tokens is None else num_prompt_tokens
        self._executor.add(SequenceSpec(self._next_id, tuple(ids), num_prompt, sampling))
        shared = [] if prefix_of is None else prefix_of.block_ids[: (len(ids) - 1) // BLOCK_SIZE]
        return Driven(self._next_id, list(ids), num_prompt, len(shared) * BLOCK_SIZE, list(shared))

    def step(self, *parts: tuple[Driven, int]) -> list[RowOutput]:
        """Runs so many tokens of each sequence as one batch and appends what was drawn."""
        outputs = list(self._executor.run([self._row(driven, count) for driven, count in parts]).outputs)
        for (driven, count), output in zip(parts, outputs, strict=True):
            driven.num_computed += count
            if driven.num_computed == len(driven.ids):
                driven.outputs.append(output)
            driven.ids.extend(output.ids)
        return outputs

    def generate(self, driven: Sequence[Driven], num_tokens: int, chunk: int = 10_000) -> None:
        """Runs all together until each has so many output ids."""
        while unfinished := [one for one in driven if len(one.drawn) < num_tokens]:
            self.step(*((one, min(chunk, len(one.ids) - one.num_computed)) for one in unfinished))

    def run_ahead(self, driven: Driven) -> list[RowOutput]:
        """Runs the row planned before the id of the step in flight was known."""
        end = len(driven.ids)
        self._reserve(driven, end)
        row = Row(driven.sequence_id, (PLACEHOLDER,), end - 1, list(driven.block_ids), True)
        driven.num_computed = end
        return list(self._executor.run([row]).outputs)

    def finish(self, *finished: Driven) -> None:
        """Forgets sequences; their blocks are poisoned and used again, last ones first."""
        for driven in finished:
            self._executor.remove(driven.sequence_id)
            self._give_back([block for block in driven.block_ids if block not in (NULL_BLOCK, *self._free)])

    def _row(self, driven: Driven, count: int) -> Row:
        start, end = driven.num_computed, driven.num_computed + count
        self._pass_window(driven)
        self._reserve(driven, end)
        ids = tuple(driven.ids[start:end])
        return Row(driven.sequence_id, ids, start, list(driven.block_ids), is_sampled=end == len(driven.ids))

    def _pass_window(self, driven: Driven) -> None:
        behind = 0 if self._window is None else max(0, driven.num_computed - self._window + 1) // BLOCK_SIZE
        passed = [block for block in driven.block_ids[:behind] if block != NULL_BLOCK]
        driven.block_ids[:behind] = [NULL_BLOCK] * behind
        self._give_back(passed)

    def _reserve(self, driven: Driven, num_tokens: int) -> None:
        while len(driven.block_ids) * BLOCK_SIZE < num_tokens:
            driven.block_ids.append(self._free.pop())

    def _give_back(self, block_ids: Sequence[int]) -> None:
        self._executor.poison(list(block_ids))
        self._free.extend(self._random.sample(list(block_ids), len(block_ids)))
