"""One request across broken streams: what was received, and what to send next.

Pure: responses and errors in, events and requests out. Knows no channels and no clock.
"""

from pagemesh.errors import PagemeshError, broken_stream
from pagemesh.events import (
    Complete,
    Event,
    Resumed,
    Started,
    TokenChunk,
    complete_of,
    started_of,
    token_chunk_of,
)
from pagemesh.v1 import gateway_pb2


class StreamCursor:
    """Keeps a stream's place, so that the caller sees every event once whatever breaks underneath."""

    def __init__(self, request: gateway_pb2.GenerateRequest) -> None:
        self._request = request
        self._next_seq_id = request.resume.next_seq_id
        self._output_ids = [list(choice.output_ids) for choice in request.resume.choices]
        self._started: Started | None = None
        self._resume_token = request.resume.resume_token
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def request(self) -> gateway_pb2.GenerateRequest:
        """The request to send now."""
        return self._request

    def accept(self, response: gateway_pb2.GenerateResponse, address: str) -> Event | None:
        """Takes the next response. None is one that the caller has had. Raises PagemeshError on a gap."""
        if self._is_complete or response.seq_id > self._next_seq_id:
            raise broken_stream(f"event {response.seq_id} came where {self._next_seq_id} was due")
        if response.seq_id < self._next_seq_id:
            return None
        event = self._event_of(response, address)
        if event is not None:
            self._next_seq_id += 1
        return event

    def can_go_on(self, error: PagemeshError) -> bool:
        """True if the request may be sent again after this end of its stream."""
        return error.is_retryable and (not any(self._output_ids) or bool(self._resume_token))

    def go_on(self) -> None:
        """Makes `request()` the next attempt: the rest of the stream, or all of it if nothing came yet."""
        request = gateway_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.client_attempt += 1
        if self._started is not None:
            request.seed = self._started.seed
        if self._started is not None and self._resume_token:
            request.resume.CopyFrom(self._resume(self._started))
        self._request = request

    def _resume(self, started: Started) -> gateway_pb2.Resume:
        num_choices = max(1, self._request.n)
        self._grow(num_choices)
        return gateway_pb2.Resume(
            next_seq_id=self._next_seq_id,
            prompt_ids=started.prompt_ids,
            choices=[gateway_pb2.ResumeChoice(output_ids=ids) for ids in self._output_ids],
            resume_token=self._resume_token,
        )

    def _event_of(self, response: gateway_pb2.GenerateResponse, address: str) -> Event | None:
        match response.WhichOneof("event"):
            case "started":
                return self._accept_started(response, address)
            case "token":
                return self._accept_token(token_chunk_of(response.seq_id, response.token))
            case "complete":
                return self._accept_complete(complete_of(response.seq_id, response.complete))
            case _:
                raise broken_stream(f"event {response.seq_id} is of a kind that this client does not know")

    def _accept_started(self, response: gateway_pb2.GenerateResponse, address: str) -> Event:
        message = response.started
        if message.resume_token:
            self._resume_token = message.resume_token
        if self._started is None:
            self._started = started_of(response.seq_id, message)
            return self._started
        return Resumed(response.seq_id, address, self._request.client_attempt, message.trace_id)

    def _accept_token(self, chunk: TokenChunk) -> TokenChunk:
        self._grow(chunk.choice + 1)
        ids = self._output_ids[chunk.choice]
        if chunk.first_output_index != len(ids):
            place = f"choice {chunk.choice}, output index {chunk.first_output_index}"
            raise broken_stream(f"{place} came where {len(ids)} was due")
        ids.extend(chunk.ids)
        return chunk

    def _accept_complete(self, complete: Complete) -> Complete:
        self._is_complete = True
        return complete

    def _grow(self, num_choices: int) -> None:
        missing = num_choices - len(self._output_ids)
        self._output_ids.extend([] for _ in range(missing))
