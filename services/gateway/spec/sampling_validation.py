"""The numbers of SamplingParams, checked and with their defaults."""

from pagemesh.v1 import generation_pb2
from services.contract.errors import invalid_field
from services.gateway.spec.field_checks import check_id, check_number
from services.gateway.spec.generation_spec import Sampling

MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_LOGPROBS = 20
_BOUNDS: dict[str, dict[str, float]] = {
    "temperature": {"at_least": 0.0, "at_most": 100.0},
    "top_p": {"above": 0.0, "at_most": 1.0},
    "min_p": {"at_least": 0.0, "at_most": 1.0},
    "repetition_penalty": {"above": 0.0, "at_most": 100.0},
    "presence_penalty": {"at_least": -2.0, "at_most": 2.0},
    "frequency_penalty": {"at_least": -2.0, "at_most": 2.0},
}


def validate_sampling(params: generation_pb2.SamplingParams, vocab_size: int) -> Sampling:
    """Raises MeshError INVALID_FIELD with a path below `sampling`."""
    numbers = {
        name: check_number(getattr(params, name), f"sampling.{name}", **bounds)
        for name, bounds in _BOUNDS.items()
        if params.HasField(name)
    }
    return Sampling(
        **numbers,
        top_k=_top_k(params.top_k, vocab_size),
        min_tokens=params.min_tokens,
        ignore_eos=params.ignore_eos,
        logit_bias=_logit_bias(params, vocab_size),
        logprobs=_logprobs(params, vocab_size),
    )


def _top_k(top_k: int, vocab_size: int) -> int:
    """-1, 0 and everything from the vocabulary's size on are off."""
    if top_k < -1:
        raise invalid_field("sampling.top_k", f"top_k is at least -1; given {top_k}")
    return top_k if 0 < top_k < vocab_size else 0


def _logit_bias(params: generation_pb2.SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    field = "sampling.logit_bias"
    if len(params.logit_bias) > MAX_BIASES:
        raise invalid_field(field, f"at most {MAX_BIASES} entries; given {len(params.logit_bias)}")
    biases: dict[int, float] = {}
    for i, entry in enumerate(params.logit_bias):
        token_id = check_id(entry.token_id, f"{field}[{i}].token_id", vocab_size)
        if token_id in biases:
            raise invalid_field(f"{field}[{i}].token_id", f"token id {token_id} is there twice")
        bias = check_number(entry.bias, f"{field}[{i}].bias", at_least=-MAX_BIAS, at_most=MAX_BIAS)
        biases[token_id] = bias
    return tuple(biases.items())


def _logprobs(params: generation_pb2.SamplingParams, vocab_size: int) -> int | None:
    if not params.HasField("logprobs"):
        return None
    limit = min(MAX_LOGPROBS, vocab_size)
    if params.logprobs > limit:
        raise invalid_field("sampling.logprobs", f"logprobs is at most {limit}; given {params.logprobs}")
    return params.logprobs
