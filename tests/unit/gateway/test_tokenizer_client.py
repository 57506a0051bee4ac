"""Encode calls: whose fault a call is that took too long, and what the others notice of it."""

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from pagemesh.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from services.contract.errors import MeshError, Reason
from services.gateway.peers.tokenizer_client import TokenizerPool

DEFINITION = json.dumps(
    {"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}
).encode()


class Tokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Never ends with a text that says so."""

    def __init__(self) -> None:
        self.num_infos = 0

    async def GetTokenizerInfo(self, request: Any, context: Any) -> tokenizer_pb2.GetTokenizerInfoResponse:
        self.num_infos += 1
        sha256 = hashlib.sha256(DEFINITION).hexdigest()
        return tokenizer_pb2.GetTokenizerInfoResponse(model="m", definition_sha256=sha256, vocab_size=1)

    async def GetTokenizerDefinition(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield tokenizer_pb2.GetTokenizerDefinitionResponse(content=DEFINITION)

    async def Encode(self, request: Any, context: Any) -> tokenizer_pb2.EncodeResponse:
        if request.text == "endless":
            await asyncio.Event().wait()
        return tokenizer_pb2.EncodeResponse(ids=[0])


@asynccontextmanager
async def serving(tokenizer: Tokenizer) -> AsyncIterator[TokenizerPool]:
    server = grpc.aio.server()
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(tokenizer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    pool = TokenizerPool()
    async with grpc.aio.insecure_channel(address) as channel:
        keeper = asyncio.create_task(pool.keep(channel, address, random.Random(0)))
        await pool.wait_up("m", 5.0)
        yield pool
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
    await server.stop(None)


async def encode(pool: TokenizerPool, text: str, seconds: float) -> list[int]:
    until_s = asyncio.get_running_loop().time() + seconds
    return (await pool.encode("m", tokenizer_pb2.EncodeRequest(text=text), until_s, ())).ids


async def test_a_callers_short_deadline_is_not_held_against_the_tokenizer() -> None:
    tokenizer = Tokenizer()
    async with serving(tokenizer) as pool:
        for _ in range(3):
            with pytest.raises(MeshError) as caught:
                await encode(pool, "endless", seconds=0.05)
            assert caught.value.reason is Reason.UNAVAILABLE
            assert pool.is_up
        assert await encode(pool, "a", seconds=5.0) == [0]
    assert tokenizer.num_infos == 1, "it was asked again who it is"
