"""Keys name tenants; everything made from an identity stays apart from everybody else's."""

import itertools
import subprocess
import sys

import pytest

from services.contract.errors import MeshError, Reason
from services.gateway.access.identity import Identities, KeysFileError, hash_api_key, tenant_key
from services.gateway.access.salt import cache_salt, session_key
from services.gateway.spec.generation_spec import CacheScope, SessionTurn

DEPLOYMENT = b"d" * 32
KEYS = f"""
# keys of the day
acme   {hash_api_key("acme-1")}
acme   {hash_api_key("acme-2")}  # the next one
globex {hash_api_key("globex-1")}
"""


@pytest.fixture
def identities():
    return Identities.from_keys_file(DEPLOYMENT, KEYS)


def test_a_key_names_its_tenant(identities):
    acme = identities.authenticate("Bearer acme-1")
    assert acme.name == "acme"
    assert acme.key == tenant_key(DEPLOYMENT, "acme")
    assert len(acme.key) == 16
    assert identities.authenticate("bearer  acme-2 ") == acme
    assert identities.authenticate("Bearer globex-1").name == "globex"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "acme-1",
        "Basic acme-1",
        "Bearer acme-3",
        "Bearer " + hash_api_key("acme-1"),
    ],
)
def test_anything_else_is_nobody(identities, header):
    with pytest.raises(MeshError) as refusal:
        identities.authenticate(header)
    assert refusal.value.reason is Reason.UNAUTHENTICATED


def test_an_empty_keys_file_lets_nobody_in():
    with pytest.raises(MeshError):
        Identities.from_keys_file(DEPLOYMENT, "\n# none yet\n").authenticate("Bearer acme-1")


def test_without_a_keys_file_everybody_is_the_default_tenant():
    assert Identities.anonymous(DEPLOYMENT).authenticate(None).name == "default"


@pytest.mark.parametrize("line", ["acme", "acme not-a-hash", f"two words {'0' * 64}", f"acme {'0' * 63}"])
def test_a_bad_line_is_named_by_number_and_not_repeated(line):
    with pytest.raises(KeysFileError) as refusal:
        Identities.from_keys_file(DEPLOYMENT, f"# first\n{line}")
    assert "line 2" in str(refusal.value)
    assert line not in str(refusal.value)


def test_a_key_of_two_tenants_is_refused():
    digest = hash_api_key("shared")
    with pytest.raises(KeysFileError, match="line 2 gives a key to a second tenant"):
        Identities.from_keys_file(DEPLOYMENT, f"acme {digest}\nother {digest}")


def test_a_key_never_shows_in_a_log():
    assert "key" not in repr(Identities.anonymous(DEPLOYMENT).authenticate(None))


def test_the_command_prints_the_hash_of_a_key():
    done = subprocess.run(
        [sys.executable, "-m", "services.gateway.access.identity"],
        input="acme-1\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hash_api_key("acme-1")


def test_every_tenant_user_session_and_scope_has_its_own_salt(identities):
    tenants = [identities.authenticate(f"Bearer {key}") for key in ("acme-1", "globex-1")]
    turns = [SessionTurn(i, user) for i, user in itertools.product(("s", "t"), ("u", "v"))]
    made = {
        (tenant.name, scope, turn.user_id, turn.id): cache_salt(DEPLOYMENT, tenant, scope, turn)
        for tenant, scope, turn in itertools.product(tenants, CacheScope, turns)
    }
    assert len({made["acme", CacheScope.TENANT, turn.user_id, turn.id] for turn in turns}) == 1
    assert len({made["acme", CacheScope.USER, turn.user_id, turn.id] for turn in turns}) == 2
    assert len(set(made.values())) == 2 * (1 + 2 + 4)
    assert all(len(salt) == 16 for salt in made.values())
    assert cache_salt(b"other", tenants[0], CacheScope.TENANT) not in made.values()


def test_names_cannot_be_shifted_into_each_other(identities):
    acme = identities.authenticate("Bearer acme-1")
    assert session_key(DEPLOYMENT, acme, "a", "bc") != session_key(DEPLOYMENT, acme, "ab", "c")
    assert session_key(DEPLOYMENT, acme, 'a", "b', "c") != session_key(DEPLOYMENT, acme, "a", 'b", "c')
