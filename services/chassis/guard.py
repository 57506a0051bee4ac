"""The process's edge for every call: undecodable bytes and errors become a status with details.

MeshError answers by the table; anything else is our own fault: logged once, and INTERNAL without its words.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from services.contract.errors import MeshError, Reason
from services.contract.status import abort

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)


class _Undecodable:
    """Stands for a request whose bytes are no valid message."""


UNDECODABLE = _Undecodable()


class Guard(grpc.aio.ServerInterceptor):
    """Wraps every asynchronous handler."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else guarded(handler, handler_call_details.method)


def guarded(handler: Handler, method: str) -> Handler:
    """The same kind of handler with its behaviour and, for single requests, its deserializer wrapped."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    wrapped = _wrap(behaviour, method)
    if wrapped is None:
        return handler
    decode = handler.request_deserializer
    encode = handler.response_serializer
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(wrapped, _lenient(decode), encode)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(wrapped, _lenient(decode), encode)
    if handler.stream_unary:
        return grpc.stream_unary_rpc_method_handler(wrapped, decode, encode)
    return grpc.stream_stream_rpc_method_handler(wrapped, decode, encode)


def _lenient(decode: Any) -> Any:
    if decode is None:
        return None

    def decode_or_mark(content: bytes) -> Any:
        try:
            return decode(content)
        except DecodeError:
            return UNDECODABLE

    return decode_or_mark


def _wrap(behaviour: Any, method: str) -> Any:
    """gRPC tells generators from coroutines by their kind: each is wrapped by its own. None if neither."""
    if inspect.isasyncgenfunction(behaviour):
        return _wrap_generator(behaviour, method)
    if inspect.iscoroutinefunction(behaviour):
        return _wrap_coroutine(behaviour, method)
    return None


def _wrap_coroutine(behaviour: Any, method: str) -> Any:
    async def call(request: Any, context: Context) -> Any:
        if request is UNDECODABLE:
            await _refuse(context)
        try:
            return await behaviour(request, context)
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 the edge
            await _fail(context, error, method)

    return call


def _wrap_generator(behaviour: Any, method: str) -> Any:
    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        if request is UNDECODABLE:
            await _refuse(context)
        try:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.BaseError:
            raise
        except Exception as error:  # noqa: BLE001 the edge
            await _fail(context, error, method)

    return stream


async def _refuse(context: Context) -> NoReturn:
    await abort(context, MeshError(Reason.UNDECODABLE, "the request's bytes are no valid message"))


async def _fail(context: Context, error: Exception, method: str) -> NoReturn:
    if isinstance(error, MeshError):
        await abort(context, error)
    logger.error("call failed", exc_info=error, extra={"method": method})
    await abort(context, MeshError(Reason.INTERNAL, "internal error; the service's log has the details"))
