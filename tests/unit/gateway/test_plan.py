"""Which streams can be resumed, by size."""

import pytest

from pagemesh.v1 import gateway_pb2
from services.gateway.plan import can_resume

LIMIT = 16 * 2**20


def largest_resume(num_prompt_ids: int, num_output_ids: int, n: int) -> int:
    """Bytes of a resume with everything in it, over a request that was nearly nothing."""
    resume = gateway_pb2.Resume(
        next_seq_id=2**63, prompt_ids=[200_000] * num_prompt_ids, resume_token=b"t" * 200
    )
    for _ in range(n):
        resume.choices.add(output_ids=[200_000] * num_output_ids)
    request = gateway_pb2.GenerateRequest(request_id="r" * 128, client_attempt=2**32 - 1, seed=2**64 - 1)
    request.resume.CopyFrom(resume)
    return request.ByteSize()


@pytest.mark.parametrize(("num_prompt", "num_output", "n"), [(10, 10, 1), (20_000, 100, 64), (5, 300_000, 4)])
def test_what_is_called_resumable_fits_into_a_message(num_prompt: int, num_output: int, n: int) -> None:
    size = largest_resume(num_prompt, num_output, n)
    for limit in (size - 1, size // 2):
        assert not can_resume(0, num_prompt, n * num_output, n, limit)
    assert can_resume(0, num_prompt, n * num_output, n, 2 * size + 1024)


def test_a_prompt_whose_ids_would_make_started_too_large_is_not_resumable() -> None:
    assert can_resume(0, 200_000, 1000, 1, LIMIT)
    assert not can_resume(0, 210_000, 1000, 1, LIMIT)


def test_the_request_itself_counts() -> None:
    assert can_resume(LIMIT // 2, 1000, 1000, 1, LIMIT)
    assert not can_resume(LIMIT - 1000, 1000, 1000, 1, LIMIT)
