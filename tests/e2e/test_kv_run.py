"""`make kv` with scripted engines: every part runs and finds what a scripted engine has to show."""

from bench.kv import cache_cost, rhythm, stall
from services.contract.model_folder import resolve_model


def _ignore(line: str) -> None:
    pass


def test_the_caches_cost_is_measured_without_a_hit() -> None:
    cost = cache_cost.measure_cost("scripted", resolve_model("smollm2"), 2, 16, _ignore)
    assert cost.num_hits == 0
    assert cost.ratio.num_rounds == 2
    assert 0 < cost.own_us_per_request < 20_000
    assert "tokens per second lost" in "\n".join(cache_cost.lines(cost))


def test_a_long_prompt_comes_in_chunks_beside_running_streams() -> None:
    found = stall.measure_stalls("scripted", resolve_model("smollm2"), 1, _ignore)
    (chunked,), (whole,) = found.chunked, found.whole
    assert chunked.fewest_tokens >= stall.PROMPT_TOKENS // stall.CHUNK_TOKENS
    assert whole.worst_gap_ms > 0
    assert "fewest tokens of a stream meanwhile" in "\n".join(stall.lines(found))


def test_the_rhythm_is_measured_by_size_of_chunk() -> None:
    (row,) = rhythm.measure_rhythm("scripted", resolve_model("smollm2"), 0.5, _ignore, chunks=(64,))
    assert row.chunk_tokens == 64
    assert row.mean_ms > 0 and row.tokens_per_s > 0
    assert "| 64 |" in "\n".join(rhythm.lines([row]))
