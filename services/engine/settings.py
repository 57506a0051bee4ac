"""What an engine process can be told. Constants of the process."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from services.chassis.settings import ServiceSettings

FUSIONS = ("qkv", "gate_up", "norm", "gate", "graphs")
"""What can be switched off to measure it: fused projections, kernels of a GPU, recorded decode steps."""


class EngineSettings(ServiceSettings):
    """Settings of the engine service."""

    service: ClassVar[str] = "engine"

    listen: str = Field("127.0.0.1:7630", description="host:port to serve gRPC on; port 0 takes a free one")
    address: str = Field("", description="host:port that gateways dial; empty is what it listens on")
    model: str = Field("smollm2", description="Folder, GGUF file, hub id, or smollm2 for the default model")
    served_name: str = Field("smollm2", min_length=1, description="Name that the model is served under")
    executor: str = Field(
        "auto",
        description="How it computes: native, torch, or scripted (no model); auto is native where it can be",
    )
    device: str = Field("cpu", description="Device of the torch executor, as torch names it")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type of weights and KV; auto is bfloat16, in torch on a CPU float32",
    )
    weights: Literal["plain", "int8", "int4"] = Field(
        "plain", description="Weights of the native executor: plain (bf16), int8, or int4 in groups of 32"
    )
    kv_dtype: Literal["plain", "int8"] = Field(
        "plain", description="KV of the native executor: plain (bf16), or int8"
    )
    attention: str = Field(
        "auto",
        description="Attention of the torch executor: reference, flash, triton; auto takes the fastest",
    )
    unfused: str = Field("", description=f"What is not fused, to measure it, by commas: {', '.join(FUSIONS)}")
    batch_invariant: bool = Field(
        False, description="A row's bits do not depend on its neighbours, at a price; attention triton"
    )
    num_threads: int = Field(
        0, ge=0, le=1024, description="Compute threads; 0: usable cores, in torch its own choice"
    )
    script: Path | None = Field(None, description="Script of the scripted executor; unset draws without one")
    block_size: int = Field(16, ge=1, le=256, description="Ids per KV block; see docs/gpu.md")
    num_blocks: int = Field(0, ge=0, description="KV blocks, with the null block; 0 sizes by kv_memory_mib")
    kv_memory_mib: int = Field(1024, ge=1, description="MiB of the KV pool where num_blocks is 0")
    max_model_len: int = Field(0, ge=0, description="Ids per sequence at most; 0 is the model's own limit")
    max_sequences: int = Field(64, ge=1, le=256, description="Sequences that run at once")
    max_batch_tokens: int = Field(2048, ge=1, le=65536, description="Ids through the model in a step at most")
    chunk_tokens: int = Field(
        512, ge=1, le=65536, description="Ids of known text in a step at most while streams run"
    )
    lag: int = Field(0, ge=0, le=1, description="Steps planned ahead of the one that is committed")
    seed: int = Field(0, ge=0, description="Orders the blocks that are handed out; changes no answer")
    poison_freed_blocks: bool = Field(False, description="Fill freed blocks with NaN, to prove none is read")

    @property
    def unfused_names(self) -> frozenset[str]:
        return frozenset(filter(None, self.unfused.split(",")))

    @model_validator(mode="after")
    def _check_fusions(self) -> Self:
        if unknown := sorted(self.unfused_names - set(FUSIONS)):
            raise ValueError(
                f"unfused is {self.unfused}; there is no {unknown[0]} among {', '.join(FUSIONS)}"
            )
        return self

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        if self.max_batch_tokens < self.max_sequences:
            raise ValueError(
                f"max_batch_tokens is {self.max_batch_tokens}; {self.max_sequences} sequences need as many"
            )
        if 0 < self.num_blocks < 3:
            raise ValueError(f"num_blocks is {self.num_blocks}; at least 3 (the null block and two more)")
        return self
