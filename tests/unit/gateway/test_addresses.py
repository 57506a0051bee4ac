"""Peers by name: their addresses come and go, a failed look-up changes nothing, TLS dials the name itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.chassis.tasks import Tasks
from services.gateway.mesh import Mesh
from services.gateway.peers.addresses import Addresses, look_up
from services.gateway.settings import GatewaySettings
from services.gateway.wiring import _follow_peers


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (tasks of others tell nobody)
            await asyncio.sleep(0)


async def test_addresses_are_kept_while_their_name_has_them() -> None:
    answers = [["a:1", "b:1"], [], ["b:1", "c:1"]]
    kept: set[str] = set()
    seen: list[set[str]] = []

    async def keep(address: str) -> None:
        kept.add(address)
        try:
            await asyncio.Event().wait()
        finally:
            kept.discard(address)

    async def played(name: str) -> list[str]:
        seen.append(set(kept))
        return answers.pop(0) if answers else ["b:1", "c:1"]

    exits: list[int] = []
    tasks = Tasks(exits.append)
    tasks.spawn(Addresses(["peers:1"], keep, tasks, 0.001, played).follow(), "follow", critical=True)
    await until(lambda: len(seen) > 4 and kept == {"b:1", "c:1"})
    assert seen[:3] == [set(), {"a:1", "b:1"}, {"a:1", "b:1"}], "a failed look-up took addresses away"
    await tasks.close()
    assert exits == [], "an address that went ended the process"


async def test_a_name_is_looked_up_and_a_number_is_not() -> None:
    assert await look_up("127.0.0.1:7620") == ["127.0.0.1:7620"]
    assert "127.0.0.1:7620" in await look_up("localhost:7620")
    assert await look_up("no-such-host.invalid:7620") == []


@pytest.mark.parametrize("has_tls", [False, True])
async def test_with_tls_the_name_is_dialled_since_it_is_what_is_verified(
    has_tls: bool, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    settings = GatewaySettings(
        schedulers=("localhost:7620",), tokenizers=("localhost:7610",), tls_ca=ca if has_tls else None
    )
    kept: list[str] = []

    async def keep(channel: Any, address: str, rng: Any) -> None:
        kept.append(address)
        await asyncio.Event().wait()

    tasks, peers = Tasks(), SimpleNamespace(keep=keep)
    mesh = SimpleNamespace(placement=peers, tokenizers=peers, rng=None, tasks=tasks)
    _follow_peers(settings, cast(Mesh, mesh))
    expected = {"localhost:7620", "localhost:7610"} if has_tls else {"127.0.0.1:7620", "127.0.0.1:7610"}
    await until(lambda: expected <= set(kept))
    assert has_tls == ("localhost:7620" in kept)
    await tasks.close()
