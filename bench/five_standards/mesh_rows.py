"""Runs the mesh's rows: a mesh for each combination of what is fixed at its start."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from bench.five_standards.conversation import MAX_TOKENS, Message
from bench.five_standards.ladder import Switches
from bench.five_standards.row import Call, Row, row_of
from pagemesh import Client, TokenChunk
from pagemesh.request import CachePolicy, Options
from tests.support.mesh import Mesh

TEMPLATE = "chat_template.jinja"
_LOOK = "{{ messages[-1]['content'] | truncate(0, true, '', 0) }}"
"""In front of a template it writes nothing, but has to see a content: so every prompt is rendered whole."""
NO_TOKENIZER_CACHE = {"exact_cache_mib": 0, "segment_cache_mib": 0}

Steps = Sequence[tuple[str, Switches]]


def mesh_rows(
    steps: Steps,
    executors: tuple[str, str],
    model: Path,
    scratch: Path,
    ask: "Asking",
) -> list[Row]:
    """`executors` without the standard and with it. Rows in the order of the steps."""
    found: dict[str, Row] = {}
    for key in dict.fromkeys(switches.mesh for _, switches in steps):
        rows = [(name, switches) for name, switches in steps if switches.mesh == key]
        with _mesh(rows[0][1], executors, model, scratch) as mesh, mesh.client() as client:
            for name, switches in rows:
                found[name] = ask.row(client, name, switches)
    return [found[name] for name, _ in steps]


def _mesh(switches: Switches, executors: tuple[str, str], model: Path, scratch: Path) -> Mesh:
    tokenizer: dict[str, object] = {} if switches.prompts else {"model": _opaque_model(model, scratch)}
    if not switches.tokenizer:
        tokenizer |= {**NO_TOKENIZER_CACHE, "hot_queries": _empty_file(scratch)}
    return Mesh(
        engines=1,
        executor=executors[switches.attention],
        model=model,
        settings={"tokenizer": tokenizer},
        environment={"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
    )


class Asking:
    """Puts questions to a mesh, the way the switches say."""

    def __init__(
        self,
        history: list[Message],
        questions: Iterator[Message],
        num_calls: int,
        report: Callable[[str], None],
    ) -> None:
        self._history = history
        self._questions = questions
        self._num_calls = num_calls
        self._report = report

    def row(self, client: Client, name: str, switches: Switches) -> Row:
        """The first call is not counted: it fills what is to be full."""
        calls = [self._call(client, switches) for _ in range(1 + self._num_calls)][1:]
        row = row_of(name, calls)
        self._report(f"  {row.name}: {row.first_ms:.0f} / {row.whole_ms:.0f} ms")
        return row

    def _call(self, client: Client, switches: Switches) -> Call:
        policy = CachePolicy.USE if switches.cache else CachePolicy.BYPASS
        options = Options(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, cache_policy=policy)
        messages = [*self._history, next(self._questions)]
        begin_s = time.perf_counter()
        first_s = None
        with closing(client.generate(messages, **options)) as events:
            for event in events:
                if isinstance(event, TokenChunk) and first_s is None:
                    first_s = time.perf_counter()
        whole_ms = 1000 * (time.perf_counter() - begin_s)
        assert first_s is not None
        computed_ms = 1000 * (first_s - begin_s)
        return Call(computed_ms if switches.streaming else whole_ms, whole_ms, computed_ms)


def _opaque_model(model: Path, scratch: Path) -> Path:
    """The same model under a template that cannot be planned."""
    folder = scratch / "opaque"
    if not folder.exists():
        folder.mkdir(parents=True)
        for file in model.iterdir():
            (folder / file.name).symlink_to(file)
        (folder / TEMPLATE).unlink()
        (folder / TEMPLATE).write_text(_LOOK + (model / TEMPLATE).read_text())
    return folder


def _empty_file(scratch: Path) -> Path:
    file = scratch / "no_queries.txt"
    file.touch()
    return file
