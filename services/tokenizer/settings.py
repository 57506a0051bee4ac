"""What a tokenizer process can be told. Constants of the process: no request changes them."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from services.chassis.settings import ServiceSettings

HOT_QUERIES = Path(__file__).with_name("hot_queries.txt")


class TokenizerSettings(ServiceSettings):
    """Settings of the tokenizer service."""

    service: ClassVar[str] = "tokenizer"

    listen: str = Field("127.0.0.1:7610", description="host:port to serve gRPC on; port 0 takes a free one")
    model: str = Field("smollm2", description="Folder, GGUF file, hub id, or smollm2 for the default model")
    served_name: str = Field("smollm2", min_length=1, description="Name that the model is served under")
    max_prompt_tokens: int = Field(
        0, ge=0, description="Tokens of a prompt at most; 0 is the model's max_position_embeddings"
    )
    hot_queries: Path = Field(
        HOT_QUERIES,
        description="File of questions to encode before READY, one JSON string or plain line each",
    )
    exact_cache_mib: int = Field(
        32, ge=0, le=65536, description="MiB of the cache of whole prompts; 0 is off"
    )
    segment_cache_mib: int = Field(64, ge=0, le=65536, description="MiB of the cache of segments; 0 is off")
    encode_threads: int = Field(2, ge=1, le=64, description="Threads that encode long texts")
    template_time_limit_s: float = Field(
        2.0, gt=0, le=60, description="Seconds that the chat template may run before its process is killed"
    )
