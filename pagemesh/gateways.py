"""The gateways a client may call, in order of preference: one channel each, and which one is in use."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

DEFAULT_ADDRESS = "127.0.0.1:7600"

_MAX_MESSAGE_BYTES = 17 * 1024 * 1024
"""The mesh's public limit and 1 MiB: a request at the limit is refused in words, not by the transport."""

CHANNEL_OPTIONS: Mapping[str, int] = {
    "grpc.max_send_message_length": _MAX_MESSAGE_BYTES,
    "grpc.max_receive_message_length": _MAX_MESSAGE_BYTES,
    # A gateway that is gone without a word (power, network, a frozen process) breaks the stream within 15 s.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 5_000,
    "grpc.http2.ping_timeout_ms": 5_000,  # without it gRPC waits a minute, whatever the timeout says
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    # A gateway that comes back is found within a second; the library's own backoff grows to two minutes.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 2_000,
    "grpc.max_reconnect_backoff_ms": 1_000,
}

Channel = TypeVar("Channel")
Stub = TypeVar("Stub")


class Gateways(Generic[Channel, Stub]):
    """Safe for threads: a sync client may be shared."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        open_channel: Callable[[str], Channel],
        stub_of: Callable[[Channel], Stub],
    ) -> None:
        self._addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        if not self._addresses:
            raise ValueError("a client needs at least one gateway address")
        self._open_channel = open_channel
        self._stub_of = stub_of
        self._opened: dict[str, tuple[Channel, Stub]] = {}
        self._index = 0
        self._lock = threading.Lock()

    def current(self) -> tuple[str, Stub]:
        """The gateway in use. Its channel is opened when it is first needed."""
        with self._lock:
            address = self._addresses[self._index]
            if address not in self._opened:
                channel = self._open_channel(address)
                self._opened[address] = (channel, self._stub_of(channel))
            return address, self._opened[address][1]

    def leave(self, address: str) -> None:
        """Goes on to the next gateway, unless another call has already left this one."""
        with self._lock:
            if self._addresses[self._index] == address:
                self._index = (self._index + 1) % len(self._addresses)

    def channels(self) -> list[Channel]:
        """All channels opened so far."""
        with self._lock:
            return [channel for channel, _ in self._opened.values()]


def call_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """Identity travels as a bearer token."""
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
