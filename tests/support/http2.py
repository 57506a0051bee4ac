"""HTTP/2 as it passes by: frames counted by kind, gRPC messages taken out of the data (RFC 9113, no TLS)."""

from collections import Counter, defaultdict
from collections.abc import Callable
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9
_PADDED = 0x8
_ACK = 0x1


class Kind(IntEnum):
    """Frame types that matter here."""

    DATA = 0
    RST_STREAM = 3
    PING = 6
    GOAWAY = 7


class FrameLog:
    """One direction of any number of connections."""

    def __init__(self) -> None:
        self.frames: Counter[int] = Counter()
        """By kind; answers to pings are not counted."""
        self.messages: list[bytes] = []
        """Serialized gRPC messages of all calls, in the order of their ends."""

    def connection(self, has_preface: bool) -> Callable[[bytes], None]:
        """Takes a new connection's bytes as they come."""
        return _Connection(self, has_preface).feed


class _Connection:
    def __init__(self, log: FrameLog, has_preface: bool) -> None:
        self._log = log
        self._num_skipped = len(PREFACE) if has_preface else 0
        self._bytes = bytearray()
        self._calls: defaultdict[int, bytearray] = defaultdict(bytearray)

    def feed(self, content: bytes) -> None:
        skipped = min(self._num_skipped, len(content))
        self._num_skipped -= skipped
        self._bytes += content[skipped:]
        while len(self._bytes) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._bytes[:3])
            if len(self._bytes) < end:
                return
            kind, flags = self._bytes[3], self._bytes[4]
            call = int.from_bytes(self._bytes[5:9]) & 0x7FFFFFFF
            self._frame(kind, flags, call, bytes(self._bytes[_HEADER_BYTES:end]))
            del self._bytes[:end]

    def _frame(self, kind: int, flags: int, call: int, payload: bytes) -> None:
        if kind != Kind.PING or not flags & _ACK:
            self._log.frames[kind] += 1
        if kind == Kind.DATA:
            num_pad = payload[0] if flags & _PADDED else 0
            self._calls[call] += payload[1 : len(payload) - num_pad] if flags & _PADDED else payload
            self._take_messages(self._calls[call])

    def _take_messages(self, content: bytearray) -> None:
        while len(content) >= 5 and len(content) >= (end := 5 + int.from_bytes(content[1:5])):
            assert content[0] == 0, "a compressed message"
            self._log.messages.append(bytes(content[5:end]))
            del content[:end]
