"""The comparison as Markdown: figures, ratios, goals, what peers do better, and how each was started."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median, stdev

from bench.compare.configuration import Configuration
from bench.compare.goals import Goal, goals, interval_text, streams_text
from bench.compare.losses import losses
from bench.compare.measurement import CHOOSING, Measurement
from bench.compare.mesh import BF16, INT8
from bench.compare.quality_figures import kl_text
from bench.compare.results import Results, is_own, own
from bench.generated import table

MIN_SAMPLES = 100
"""Behind a P50; fewer are named."""


def report(
    measurements: Sequence[Measurement],
    configurations: Sequence[Configuration],
    kls: Mapping[str, float],
    absent: Sequence[str],
) -> list[str]:
    """All sections."""
    results = Results(measurements)
    lines = [f"**Left out, not installed: {', '.join(absent)}.**", ""] if absent else []
    lines += ["Output tokens per second (mean over rounds ± standard deviation)", "", *_rates(results), ""]
    lines += ["What these rows ran", "", *_ways(results, configurations, kls), ""]
    lines += ["TTFT P50 / ITL P50 (ms) / rhythm (std over mean of ITL)", "", *_latencies(results), ""]
    lines += ["Ratios of tokens per second [95% bootstrap interval over rounds]", "", *_ratios(results), ""]
    lines += ["Goals", "", *goal_lines(goals(results)), ""]
    lines += ["Where a peer is ahead of pagemesh bf16", "", *_losses(results), ""]
    lines += ["The round that chose, tokens/s; bold is what was taken", ""]
    return [
        *lines,
        *_choosing(measurements, configurations, kls),
        "",
        "How each was started",
        "",
        *_commands(configurations),
    ]


def goal_lines(found: Sequence[Goal]) -> list[str]:
    words = {True: "met", False: "**missed**", None: "–"}
    return table(("goal", "figure", ""), [(goal.text, goal.figure, words[goal.is_met]) for goal in found])


def _ways(results: Results, configurations: Sequence[Configuration], kls: Mapping[str, float]) -> list[str]:
    """Per row and streams the configuration, with what its quantization costs."""
    by_key = {way.key: way for way in configurations}

    def cell(name: str, count: int) -> str:
        way = by_key.get(results.of(name, count)[0].configuration)
        if way is None:
            return results.of(name, count)[0].configuration
        kl = kl_text(kls, way.system, way.weights, way.is_quantized)
        return f"{way.name}; KL {kl}"

    return _by_streams(results, cell)


def _rates(results: Results) -> list[str]:
    return _by_streams(
        results, lambda name, count: _spread([it.tokens_per_s for it in results.of(name, count)])
    )


def _latencies(results: Results) -> list[str]:
    def cell(name: str, count: int) -> str:
        rows = results.of(name, count)
        samples = results.ttfts_ms(name, count)
        few = f" (n={len(samples)})" if len(samples) < MIN_SAMPLES else ""
        gap, rhythm = median(it.itl_p50_ms for it in rows), median(it.rhythm for it in rows)
        return f"{median(samples):.0f}{few} / {gap:.1f} / {rhythm:.2f}"

    return _by_streams(results, cell)


def _ratios(results: Results) -> list[str]:
    rows = []
    for mine in (own(BF16), own(INT8)):
        for peer in (name for name in results.names if not is_own(name)):
            found = [results.ratio(mine, peer, count) for count in results.streams]
            if any(found):
                rows.append((f"{mine} / {peer}", *(interval_text(it) if it else "–" for it in found)))
    return table(("", *map(streams_text, results.streams)), rows)


def _losses(results: Results) -> list[str]:
    found = losses(results)
    if not found:
        return ["Nowhere in what was measured."]
    return table(("", "pagemesh bf16", "peer"), [(loss.what, loss.mine, loss.theirs) for loss in found])


def _choosing(
    measurements: Sequence[Measurement], configurations: Sequence[Configuration], kls: Mapping[str, float]
) -> list[str]:
    rates = {
        (it.configuration, it.num_streams): it.tokens_per_s for it in measurements if it.round == CHOOSING
    }
    taken = {(it.configuration, it.num_streams) for it in measurements if it.round != CHOOSING}
    counts = sorted({it.num_streams for it in measurements})
    rows = []
    for way in configurations:
        cells = [_chosen(rates.get((way.key, count)), (way.key, count) in taken) for count in counts]
        kl = kl_text(kls, way.system, way.weights, way.is_quantized)
        rows.append((way.key, way.weights, kl, *cells))
    return table(("configuration", "weights", "KL to fp32", *map(streams_text, counts)), rows)


def _commands(configurations: Sequence[Configuration]) -> list[str]:
    return [f"- {way.key}: `{way.command}`" for way in configurations]


def _by_streams(results: Results, cell: Callable[[str, int], str]) -> list[str]:
    rows = [
        (name, *(cell(name, count) if results.of(name, count) else "–" for count in results.streams))
        for name in results.names
    ]
    return table(("", *map(streams_text, results.streams)), rows)


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.0f}"
    return f"{sum(values) / len(values):.0f} ± {stdev(values):.0f}"


def _chosen(rate: float | None, is_taken: bool) -> str:
    if rate is None:
        return "**taken**" if is_taken else "–"
    return f"**{rate:.0f}**" if is_taken else f"{rate:.0f}"
