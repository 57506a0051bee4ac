"""An opaque token that lets any gateway of a deployment go on with a stream, and only with that stream.

It carries the few facts that a resuming gateway cannot derive; a MAC under the deployment key binds them to
all that decides the answer. Knows no sessions or streams.
"""

import hmac
import json
import struct
from array import array
from dataclasses import asdict, dataclass
from hashlib import sha256

from services.contract.errors import MeshError, Reason
from services.gateway.access.identity import Tenant
from services.gateway.life.request_words import Tier
from services.gateway.spec.generation_spec import GenerationSpec

_VERSION = 2
_HEAD = struct.Struct("<BIqB")
"""Version, resolved max_tokens, session version or -1, tier. The fingerprint follows."""
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the answer depends on besides the request itself."""

    request_id: str
    seed: int
    prompt_ids: tuple[int, ...]
    revision: str
    """Of the model's weights."""
    template_sha256: str


@dataclass(frozen=True, slots=True)
class ResumeClaims:
    """What the first gateway had settled."""

    max_tokens: int
    session_version: int | None
    """Version that the turn follows; None without a session."""
    fingerprint: str = ""
    """Of the engine that the stream began or went on in."""
    tier: Tier = Tier.UNSPECIFIED
    """Promised of the ids up to then."""


def make_resume_token(
    deployment_key: bytes, tenant: Tenant, spec: GenerationSpec, facts: StreamFacts, claims: ResumeClaims
) -> bytes:
    """The token that `started` tells."""
    head = _HEAD.pack(_VERSION, claims.max_tokens, _wire_version(claims.session_version), claims.tier)
    head += claims.fingerprint.encode()
    return head + _mac(deployment_key, tenant, spec, facts, head)


def verify_resume_token(
    deployment_key: bytes, tenant: Tenant, spec: GenerationSpec, facts: StreamFacts, token: bytes
) -> ResumeClaims:
    """Raises MeshError RESUME_MISMATCH unless the token is of this stream; does not say what differs."""
    head, given = token[:-_MAC_BYTES], token[-_MAC_BYTES:]
    is_ours = len(head) >= _HEAD.size and head[0] == _VERSION
    if is_ours and hmac.compare_digest(_mac(deployment_key, tenant, spec, facts, head), given):
        return _claims(head)
    message = "the resume does not belong to this request, revision, template or session turn"
    raise MeshError(Reason.RESUME_MISMATCH, message, field="resume.resume_token")


def _claims(head: bytes) -> ResumeClaims:
    """Of a head that was found authentic."""
    _, max_tokens, session_version, tier = _HEAD.unpack_from(head)
    fingerprint = head[_HEAD.size :].decode()
    return ResumeClaims(max_tokens, None if session_version < 0 else session_version, fingerprint, Tier(tier))


def _wire_version(session_version: int | None) -> int:
    return -1 if session_version is None else session_version


def _mac(
    deployment_key: bytes, tenant: Tenant, spec: GenerationSpec, facts: StreamFacts, head: bytes
) -> bytes:
    parts = (
        b"resume",
        head,
        tenant.name.encode(),
        facts.request_id.encode(),
        facts.seed.to_bytes(8, "little"),
        facts.revision.encode(),
        facts.template_sha256.encode(),
        sha256(array("q", facts.prompt_ids).tobytes()).digest(),
        _canonical(spec),
    )
    framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.digest(deployment_key, framed, "sha256")


def _canonical(spec: GenerationSpec) -> bytes:
    """What else of the request decides the answer: not the prompt (its ids do), priority or caching."""
    session = None if spec.session is None else asdict(spec.session)
    fields = [
        spec.model,
        spec.n,
        spec.max_tokens,
        asdict(spec.sampling),
        asdict(spec.stop),
        spec.skip_special_tokens,
        session,
    ]
    return json.dumps(fields, sort_keys=True).encode()
