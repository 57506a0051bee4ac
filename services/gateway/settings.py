"""What a gateway can be told."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from services.chassis.address import split_address
from services.chassis.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """Settings of one gateway process."""

    service: ClassVar[str] = "gateway"

    listen: str = Field("127.0.0.1:7600", description="host:port to serve gRPC on; port 0 takes a free one")
    tokenizers: tuple[str, ...] = Field(
        ("127.0.0.1:7610",), min_length=1, description="host:port of every tokenizer, comma-separated"
    )
    schedulers: tuple[str, ...] = Field(
        ("127.0.0.1:7620",),
        min_length=1,
        description="host:port of every scheduler, comma-separated; a name stands for all its addresses",
    )
    api_keys_file: Path | None = Field(
        None,
        description="File of lines `tenant sha256-of-the-key`; unset: every caller is the tenant default",
    )
    deployment_key: SecretStr = Field(
        SecretStr(""),
        description="Secret of the deployment, the same for all its gateways (salts, resume tokens); "
        "may be empty only without an API keys file",
    )
    default_max_tokens: int = Field(
        512, ge=1, description="Output tokens of a request that does not say; tokens"
    )
    start_wait_s: float = Field(
        3.0, ge=0, description="Seconds that requests wait for tokenizers and engines after the start"
    )
    encode_wait_s: float = Field(
        10.0, gt=0, description="Seconds that a prompt waits at most until a tokenizer has encoded it"
    )
    unserved_limit_s: float = Field(
        20.0, gt=0, description="Seconds that a request waits while no engine of its model answers"
    )
    stall_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Seconds that one write may wait for a slow reader; then its work is cancelled",
    )
    session_ttl_s: int = Field(1800, ge=1, description="Seconds of idleness after which a session is erased")
    max_sessions_per_tenant: int = Field(
        10_000, ge=1, description="Sessions per tenant; the least recently used makes room"
    )
    explain_per_s: float = Field(5.0, gt=0, description="Explain calls per second and tenant")
    resolve_every_s: float = Field(
        5.0, gt=0, description="Seconds between look-ups of the names of schedulers and tokenizers"
    )
    head_blocks: int = Field(
        0,
        ge=0,
        description="Blocks of a prompt's head told to schedulers; ours place by session and load",
    )

    @field_validator("tokenizers", "schedulers")
    @classmethod
    def _check_peers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_address(address)
        return value

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.api_keys_file is not None and not self.deployment_key.get_secret_value():
            raise ValueError("tenants are kept apart by deployment_key; set it together with api_keys_file")
        return self
