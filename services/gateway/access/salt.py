"""Keys that keep tenants, users and sessions apart in engines' caches and in the session store.

Made from the authenticated tenant and the deployment's own key: nothing a caller sends can name another's.
"""

import hmac
import json

from services.gateway.access.identity import Tenant
from services.gateway.spec.generation_spec import CacheScope, SessionTurn

NUM_BYTES = 16


def cache_salt(
    deployment_key: bytes, tenant: Tenant, scope: CacheScope, session: SessionTurn | None = None
) -> bytes:
    """Name space of the prefix cache, 16 bytes. The scope narrows it; none is wider than the tenant."""
    parts = [tenant.name]
    if scope is not CacheScope.TENANT:
        assert session is not None, scope
        parts.append(session.user_id)
        if scope is CacheScope.SESSION:
            parts.append(session.id)
    return _keyed(deployment_key, f"cache {scope.name}", parts)


def session_key(deployment_key: bytes, tenant: Tenant, user_id: str, session_id: str) -> bytes:
    """A session of one user of one tenant, 16 bytes; the same for retention in engines and for the store."""
    return _keyed(deployment_key, "session", [tenant.name, user_id, session_id])


def _keyed(deployment_key: bytes, purpose: str, parts: list[str]) -> bytes:
    message = json.dumps([purpose, *parts]).encode()
    return hmac.digest(deployment_key, message, "sha256")[:NUM_BYTES]
