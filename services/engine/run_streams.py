"""The Run streams of all gateways: admits and cancels in, news out. A bad message never kills the stream."""

import itertools
import logging
from collections.abc import Callable

from pagemesh.v1 import engine_pb2
from services.chassis.stream import MessageStream
from services.engine.admit_check import InvalidAdmitError, admission_of, bare_admission
from services.engine.core.outcome import Refusal, StreamNews
from services.engine.core.running_set import RunningSet
from services.engine.run_words import StepTimes, run_response
from services.engine.spans import SequenceSpans

RunStream = MessageStream[engine_pb2.RunResponse, engine_pb2.RunRequest]

logger = logging.getLogger(__name__)


class RunStreams:
    """Open streams by number."""

    def __init__(self, running_set: RunningSet, spans: SequenceSpans, clock: Callable[[], int]) -> None:
        self._running_set = running_set
        self._spans = spans
        self._clock = clock
        self._streams: dict[int, RunStream] = {}
        self._numbers = itertools.count(1)

    @property
    def num_open(self) -> int:
        return len(self._streams)

    def open(self, stream: RunStream) -> int:
        """Returns the stream's number."""
        number = next(self._numbers)
        self._streams[number] = stream
        return number

    def close(self, number: int) -> None:
        """Its sequences end with it at once; their blocks stay cached."""
        del self._streams[number]
        self._running_set.drop_stream(number, self._clock())
        self._spans.drop_stream(number)

    def take(self, number: int, request: engine_pb2.RunRequest) -> None:
        """Admits come before cancels."""
        for admit in request.admit:
            self._admit(number, admit)
        for cancel in request.cancel:
            self._running_set.cancel(number, cancel.handle, self._clock())
        for release in request.release:
            self._running_set.release_retention(release.session_key)

    def tell(self, news_of: dict[int, StreamNews], times: StepTimes) -> None:
        """One message per stream."""
        for number, news in news_of.items():
            self._spans.note(number, news)
            stream = self._streams.get(number)
            if stream is not None and stream.is_open:
                stream.send(run_response(news, times))

    async def flush(self) -> None:
        """Until everything was handed to the calls."""
        for stream in list(self._streams.values()):
            await stream.flush()

    def _admit(self, number: int, admit: engine_pb2.Admit) -> None:
        try:
            admission = admission_of(number, admit, self._running_set.limits)
            if self._running_set.roster.by_handle(number, admit.handle) is not None:
                raise InvalidAdmitError("the handle is in use")
        except InvalidAdmitError as error:
            logger.warning("invalid admit", extra={"stream": number, "detail": error})
            self._running_set.refuse(bare_admission(number, admit), Refusal.INVALID, str(error))
            return
        self._spans.admit(admission)
        self._running_set.admit(admission, self._clock())
