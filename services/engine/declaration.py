"""What the engine declares of itself: limits, fingerprint, exactness tier."""

import hashlib

from pagemesh.v1 import engine_pb2, generation_pb2
from services.engine.core.limits import Limits
from services.engine.step import ExecutorSpec


def fingerprint_of(spec: ExecutorSpec, revision: str) -> generation_pb2.Fingerprint:
    """All that decides the numbers."""
    return generation_pb2.Fingerprint(
        model_revision=revision,
        executor=spec.name,
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        kernel_path=spec.kernel_path,
        device=spec.device,
        library_versions=spec.library_versions,
        flags=spec.flags,
    )


def fingerprint_hash(fingerprint: generation_pb2.Fingerprint) -> str:
    """First 16 hexadecimal digits of the SHA-256 over the deterministic serialization."""
    return hashlib.sha256(fingerprint.SerializeToString(deterministic=True)).hexdigest()[:16]


def tier_of(spec: ExecutorSpec) -> generation_pb2.ExactnessTier:
    """What is promised of a moved stream between equal fingerprints."""
    if spec.row_invariant:
        return generation_pb2.EXACTNESS_TIER_BIT_IDENTICAL
    if spec.dtype == "float32" and spec.kv_dtype == "float32" and spec.device.startswith("cpu"):
        return generation_pb2.EXACTNESS_TIER_SAME_TOKENS
    return generation_pb2.EXACTNESS_TIER_CONTINUED


def declare(
    *,
    engine_id: str,
    boot_id: str,
    address: str,
    model: str,
    revision: str,
    spec: ExecutorSpec,
    limits: Limits,
) -> engine_pb2.EngineInfo:
    """What the hellos say."""
    fingerprint = fingerprint_of(spec, revision)
    return engine_pb2.EngineInfo(
        engine_id=engine_id,
        boot_id=boot_id,
        address=address,
        model=model,
        fingerprint=fingerprint,
        fingerprint_hash=fingerprint_hash(fingerprint),
        row_invariant=spec.row_invariant,
        tier=tier_of(spec),
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
        max_pool_tokens=limits.max_pool_tokens,
        max_sequences=limits.max_sequences,
        max_batch_tokens=limits.max_batch_tokens,
        vocab_size=limits.vocab_size,
    )
