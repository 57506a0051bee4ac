"""Who is calling: API keys, known only by their hashes, name tenants.

A keys file has a line `tenant sha256-of-the-key` for each key; `#` begins a comment. Without one every caller
is the tenant `default`. `python -m services.gateway.access.identity` reads a key and prints its hash.
"""

import hashlib
import hmac
import re
import sys
from dataclasses import dataclass, field
from typing import Self

from services.contract.errors import MeshError, Reason

ANONYMOUS = "default"
_SCHEME = "bearer "
_LINE = re.compile(r"(?P<tenant>[\w.:@/-]{1,128})\s+(?P<digest>[0-9a-f]{64})", re.ASCII)


class KeysFileError(Exception):
    """A line of the keys file cannot be taken; the message gives its number only."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """An authenticated caller."""

    name: str
    key: bytes = field(repr=False)
    """Opaque, 16 bytes; what engines and schedulers see instead of the name."""


class Identities:
    """All API keys of a deployment."""

    def __init__(self, deployment_key: bytes, tenant_of_digest: dict[str, str] | None) -> None:
        self._deployment_key = deployment_key
        self._tenant_of_digest = tenant_of_digest

    @classmethod
    def from_keys_file(cls, deployment_key: bytes, content: str) -> Self:
        """Raises KeysFileError."""
        return cls(deployment_key, _read_lines(content))

    @classmethod
    def anonymous(cls, deployment_key: bytes) -> Self:
        """Everybody is the tenant `default`."""
        return cls(deployment_key, None)

    def authenticate(self, authorization: str | None) -> Tenant:
        """Takes the value of the `authorization` header. Raises MeshError UNAUTHENTICATED."""
        if self._tenant_of_digest is None:
            return self._tenant(ANONYMOUS)
        if authorization is None or not authorization.lower().startswith(_SCHEME):
            raise MeshError(Reason.UNAUTHENTICATED, "the header `authorization: Bearer <API key>` is missing")
        name = self._find(hash_api_key(authorization[len(_SCHEME) :].strip()))
        if name is None:
            raise MeshError(Reason.UNAUTHENTICATED, "the API key is not known")
        return self._tenant(name)

    def _find(self, digest: str) -> str | None:
        """Compares with every key, so that the time tells nothing of which was nearly right."""
        assert self._tenant_of_digest is not None
        found = None
        for known, name in self._tenant_of_digest.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _tenant(self, name: str) -> Tenant:
        return Tenant(name, tenant_key(self._deployment_key, name))


def tenant_key(deployment_key: bytes, name: str) -> bytes:
    """16 bytes that stand for the tenant outside the gateway."""
    return hmac.digest(deployment_key, f"tenant:{name}".encode(), "sha256")[:16]


def hash_api_key(api_key: str) -> str:
    """What the keys file holds. Plain SHA-256 is enough: API keys are random, not chosen by people."""
    return hashlib.sha256(api_key.encode()).hexdigest()


def _read_lines(content: str) -> dict[str, str]:
    tenants: dict[str, str] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _LINE.fullmatch(entry)
        if match is None:
            raise KeysFileError(f"line {number} is not `tenant sha256-of-the-key`")
        if tenants.setdefault(match["digest"], match["tenant"]) != match["tenant"]:
            raise KeysFileError(f"line {number} gives a key to a second tenant")
    return tenants


if __name__ == "__main__":
    print(hash_api_key(sys.stdin.readline().strip()))
