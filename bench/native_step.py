"""The native step alone, without loop and wire: decode by rows, prefill by chunk, beside torch if asked.

Prints medians over interleaved rounds. TFLOP/s count the layers' matrices; GB/s the weights and keys that a
step must read. The last line is one JSON object.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from services.contract.model_folder import ModelFolder, open_model_folder, resolve_model
from services.engine.executors.native_executor import NativeExecutor, NativeOptions
from services.engine.executors.torch_executor import TorchExecutor, TorchOptions
from services.engine.model.config import DecoderConfig, read_config
from services.engine.native.build import find_library
from services.engine.step import Executor, ExecutorSpec, Row, SamplingSpec, SequenceSpec

BLOCK = 16
CONTEXT = 64
"""Tokens of each row before the first measured step."""
STEPS = 8
"""Measured steps of a round."""


@dataclass
class Subject:
    """An executor under measurement."""

    name: str
    executor: Executor
    spec: ExecutorSpec
    next_id: int = 0
    milliseconds: dict[str, list[float]] = field(default_factory=dict)

    def note(self, case: str, times: Sequence[float]) -> None:
        self.milliseconds.setdefault(case, []).extend(times)

    def median(self, case: str) -> float:
        return statistics.median(self.milliseconds[case])


def main() -> None:
    arguments = _arguments()
    folder = open_model_folder(resolve_model(arguments.model))
    config = read_config(folder)
    subjects = _subjects(folder, arguments.threads, arguments.torch)
    for _ in range(arguments.rounds):
        for rows in arguments.rows:
            for subject in subjects:
                subject.note(f"decode {rows}", _decode(subject, rows))
        for chunk in arguments.chunks:
            for subject in subjects:
                subject.note(f"prefill {chunk}", _prefill(subject, chunk))
    _report(subjects, config, arguments.rows, arguments.chunks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=0, help="compute threads; 0: usable cores")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 32, 64])
    parser.add_argument("--chunks", type=int, nargs="*", default=[16, 64, 256, 512, 1024, 2048])
    parser.add_argument("--torch", action="store_true", help="beside the torch executor in bfloat16")
    return parser.parse_args()


def _subjects(folder: ModelFolder, threads: int, with_torch: bool) -> list[Subject]:
    native = NativeExecutor(folder, find_library(), NativeOptions(num_threads=threads))
    executors: dict[str, Executor] = {"native": native}
    if with_torch:
        executors["torch"] = TorchExecutor(folder, TorchOptions(dtype="bfloat16", num_threads=threads))
    subjects = [Subject(name, executor, executor.load()) for name, executor in executors.items()]
    for subject in subjects:
        subject.executor.allocate(1024)
    return subjects


def _decode(subject: Subject, num_rows: int) -> list[float]:
    """Rows of CONTEXT tokens, each with blocks of its own, one token a step; milliseconds of each step."""
    blocks_each = (CONTEXT + STEPS) // BLOCK + 1
    ids = _add(subject, num_rows, CONTEXT)
    tables = [range(1 + n * blocks_each, 1 + (n + 1) * blocks_each) for n in range(num_rows)]
    chunk = _random_ids(CONTEXT)
    subject.executor.run([Row(i, chunk, 0, t, True) for i, t in zip(ids, tables, strict=True)])
    times = []
    for step in range(STEPS):
        rows = [Row(i, (7 + step,), CONTEXT + step, t, True) for i, t in zip(ids, tables, strict=True)]
        times.append(_timed(subject.executor, rows))
    _remove(subject, ids)
    return times


def _prefill(subject: Subject, num_tokens: int) -> list[float]:
    """One chunk of a fresh prompt."""
    ids = _add(subject, 1, num_tokens)
    table = range(1, 2 + num_tokens // BLOCK)
    row = Row(ids[0], _random_ids(num_tokens), 0, table, True)
    times = [_timed(subject.executor, [row]) for _ in range(2)]
    _remove(subject, ids)
    return times


def _add(subject: Subject, count: int, length: int) -> list[int]:
    ids = list(range(subject.next_id + 1, subject.next_id + 1 + count))
    subject.next_id += count
    for sequence_id in ids:
        subject.executor.add(
            SequenceSpec(sequence_id, _random_ids(length), length, SamplingSpec(temperature=0.0))
        )
    return ids


def _remove(subject: Subject, ids: Sequence[int]) -> None:
    for sequence_id in ids:
        subject.executor.remove(sequence_id)


def _random_ids(count: int) -> tuple[int, ...]:
    generator = random.Random(count)
    return tuple(generator.randrange(1000) for _ in range(count))


def _timed(executor: Executor, rows: Sequence[Row]) -> float:
    started = time.perf_counter()
    executor.run(rows)
    return (time.perf_counter() - started) * 1000


def _matrix_weights(c: DecoderConfig) -> int:
    """Of all layers, without the head."""
    attention = c.hidden_size * c.head_size * (2 * c.num_heads + 2 * c.num_kv_heads)
    return c.num_layers * (attention + 3 * c.hidden_size * c.intermediate_size)


def _report(subjects: list[Subject], c: DecoderConfig, rows: Sequence[int], chunks: Sequence[int]) -> None:
    first = subjects[0]
    head = c.hidden_size * c.embedding_size
    key_bytes = 2 * c.num_layers * c.num_kv_heads * c.head_size * 2
    results: dict[str, object] = {"kernel_path": first.spec.kernel_path, "torch": torch.__version__}
    print(f"{first.spec.kernel_path}, {first.spec.flags}")
    for count in rows:
        case = f"decode {count}"
        read = (_matrix_weights(c) + head) * 2 + count * CONTEXT * key_bytes
        figures = {f"{s.name} tok/s": round(count / s.median(case) * 1000, 1) for s in subjects}
        figures |= {"ms": round(first.median(case), 2), "GB/s": round(read / first.median(case) / 1e6, 1)}
        results[case] = figures | _ratio(subjects, case)
        print(f"{case:14}", results[case])
    for count in chunks:
        case = f"prefill {count}"
        flop = 2 * _matrix_weights(c) * count
        figures = {f"{s.name} tok/s": round(count / s.median(case) * 1000) for s in subjects}
        figures |= {"ms": round(first.median(case), 2), "TFLOP/s": round(flop / first.median(case) / 1e9, 2)}
        results[case] = figures | _ratio(subjects, case)
        print(f"{case:14}", results[case])
    print(json.dumps(results))


def _ratio(subjects: list[Subject], case: str) -> dict[str, float]:
    if len(subjects) < 2:
        return {}
    return {"native / torch": round(subjects[1].median(case) / subjects[0].median(case), 2)}


if __name__ == "__main__":
    main()
