"""What a gateway says of its models, and of a request that is not run."""

from dataclasses import dataclass

from pagemesh.v1 import gateway_pb2


@dataclass(frozen=True, slots=True)
class Model:
    """One served model."""

    name: str
    revision: str
    max_model_len: int
    """Ids in prompt and output together; 0 if no engine is known."""
    num_engines: int
    max_choices: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen to a request now: one scheduler's estimate, never a promise."""

    prompt_tokens: int
    engine_id: str
    """Empty if it would wait."""
    bucket_tokens: int
    num_ahead: int
    snapshot_age_ms: int


def models_of(message: gateway_pb2.ListModelsResponse) -> tuple[Model, ...]:
    return tuple(
        Model(
            name=model.name,
            revision=model.revision,
            max_model_len=model.max_model_len,
            num_engines=model.num_engines,
            max_choices=model.max_choices,
            vocab_size=model.vocab_size,
        )
        for model in message.models
    )


def explanation_of(message: gateway_pb2.ExplainResponse) -> Explanation:
    return Explanation(
        prompt_tokens=message.prompt_tokens,
        engine_id=message.engine_id,
        bucket_tokens=message.bucket_tokens,
        num_ahead=message.num_ahead,
        snapshot_age_ms=message.snapshot_age_ms,
    )
