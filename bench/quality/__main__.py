"""Scores options against transformers in fp32: `python -m bench.quality [--options "torch bfloat16,..."]`.

Answers are forced token by token over length groups and kinds: top-1 agreement, KL(fp32 || option), first
greedy divergence, the ten worst tokens. Exit code 1 if an option misses its gate.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from bench.flags import names
from bench.generated import write_between
from bench.quality import report
from bench.quality.forced import greedy_answers, num_blocks_for, score_forced
from bench.quality.gates import GATES, missed
from bench.quality.kept import Judge, keep_in
from bench.quality.options import OPTIONS, make_option
from bench.quality.reference import Judgement, Reference
from bench.quality.result import OptionResult, judge_option
from bench.quality.score import first_divergence
from bench.quality.windows import Window, read_windows
from services.contract.model_folder import open_model_folder, resolve_model
from tests.support.executor_driver import ExecutorDriver

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "quality.md"


def main(arguments: Sequence[str] | None = None) -> int:
    told = _parse(arguments)
    folder = open_model_folder(resolve_model(told.model))
    windows = read_windows(folder.path, told.answer_tokens)[:: told.every]
    torch.set_num_threads(told.threads)
    judge: Judge = Reference(folder.path, folder.vocab_size, told.greedy_tokens).judge
    if told.judgements is not None:
        judge = keep_in(told.judgements, f"{folder.revision} {told.greedy_tokens}", judge)
    judgements = [judge(window) for window in windows]
    results = []
    for name in told.options:
        print(f"scoring {name}", file=sys.stderr, flush=True)
        results.append(
            score_option(
                name,
                model=told.model,
                num_threads=told.threads,
                windows=windows,
                judgements=judgements,
                num_greedy_tokens=told.greedy_tokens,
            )
        )
    _print(results, folder.path, is_json=told.json, is_documented=told.docs)
    return _judge(results)


def score_option(
    name: str,
    *,
    model: str,
    num_threads: int,
    windows: Sequence[Window],
    judgements: Sequence[Judgement],
    num_greedy_tokens: int,
) -> OptionResult:
    """Loads, scores and unloads one option."""
    executor = make_option(name, model, num_threads)
    executor.load()
    driver = ExecutorDriver(executor, num_blocks_for(windows, num_greedy_tokens))
    scores = score_forced(executor, driver, windows, judgements)
    answers = greedy_answers(driver, windows, num_greedy_tokens)
    executor.unload()
    divergences = [
        first_divergence(judgement.greedy_ids, answer)
        for judgement, answer in zip(judgements, answers, strict=True)
    ]
    return judge_option(name, windows, scores, divergences, num_greedy_tokens)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="as the engine takes it (default smollm2)")
    parser.add_argument(
        "--options",
        type=names(OPTIONS),
        default=tuple(OPTIONS),
        help=f"of {', '.join(OPTIONS)} (default all)",
    )
    parser.add_argument("--answer-tokens", type=int, default=80, help="forced ids a window at most")
    parser.add_argument("--greedy-tokens", type=int, default=64, help="greedy ids a window")
    parser.add_argument("--every", type=int, default=1, help="take every nth window only")
    parser.add_argument("--threads", type=int, default=2, help="compute threads (default 2)")
    parser.add_argument(
        "--judgements", type=Path, help="folder (600 MB) that keeps what fp32 said for the next run"
    )
    parser.add_argument("--json", action="store_true", help="print figures as JSON lines")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/quality.md as well")
    return parser.parse_args(arguments)


def _print(results: Sequence[OptionResult], folder: Path, *, is_json: bool, is_documented: bool) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = list(report.table(results))
    for result in results:
        lines += ["", *report.worst_tokens(result, tokenizer)]
    if is_documented:
        write_between(DOCUMENT, "quality", lines)
    print("\n".join([json.dumps(report.as_json(result)) for result in results] if is_json else lines))


def _judge(results: Sequence[OptionResult]) -> int:
    failures = [f"{result.name}: {line}" for result in results for line in missed(result, GATES[result.name])]
    for line in failures:
        print(f"gate missed: {line}", file=sys.stderr)
    if not failures:
        print(f"gates held: {', '.join(result.name for result in results)}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
