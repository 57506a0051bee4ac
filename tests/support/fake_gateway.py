"""A gateway made of scripts: each call takes the next one and plays it."""

from collections.abc import Callable, Iterator

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from pagemesh import RetryPolicy
from pagemesh.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2

Script = Callable[[gateway_pb2.GenerateRequest, grpc.ServicerContext], Iterator[gateway_pb2.GenerateResponse]]

FAST = RetryPolicy(first_delay_s=0.001, max_delay_s=0.002)


class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Remembers every request it got; answers Generate with its scripts in turn."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.requests: list[gateway_pb2.GenerateRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.unary_failures = 0
        self.released: list[str] = []
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def Generate(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        yield from self.scripts.pop(0)(request, context)

    def CountTokens(self, request, context):
        self._maybe_fail(context)
        return gateway_pb2.CountTokensResponse(num_tokens=len(request.text))

    def ListModels(self, request, context):
        self._maybe_fail(context)
        model = gateway_pb2.Model(
            name="smollm2",
            revision="abc",
            max_model_len=8192,
            num_engines=2,
            max_choices=64,
            vocab_size=49152,
        )
        return gateway_pb2.ListModelsResponse(models=[model])

    def Explain(self, request, context):
        return gateway_pb2.ExplainResponse(prompt_tokens=7, engine_id="engine-1", bucket_tokens=256)

    def OpenSession(self, request, context):
        return gateway_pb2.OpenSessionResponse(session_id=f"session of {request.user_id}", ttl_s=1800)

    def ReleaseSession(self, request, context):
        self.released.append(request.session_id)
        return gateway_pb2.ReleaseSessionResponse()

    def _maybe_fail(self, context):
        if self.unary_failures:
            self.unary_failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")


def started(seq_id: int = 0, *, resumable: bool = True, seed: int = 11) -> gateway_pb2.GenerateResponse:
    event = gateway_pb2.Started(
        request_id="r", seed=seed, resumable=resumable, num_prompt_tokens=3, trace_id=f"{seq_id:032x}"
    )
    if resumable:
        event.prompt_ids.extend([5, 6, 7])
        event.resume_token = b"sealed"
    return gateway_pb2.GenerateResponse(seq_id=seq_id, started=event)


def token(
    seq_id: int, index: int, text: str, *, choice: int = 0, num_ids: int = 1
) -> gateway_pb2.GenerateResponse:
    ids = range(100 + index, 100 + index + num_ids)
    event = gateway_pb2.Token(choice=choice, first_output_index=index, ids=ids, text=text)
    return gateway_pb2.GenerateResponse(seq_id=seq_id, token=event)


def complete(
    seq_id: int, num_tokens: int = 2, *, session_version: int | None = None
) -> gateway_pb2.GenerateResponse:
    event = gateway_pb2.Complete(
        choices=[
            gateway_pb2.ChoiceResult(
                finish_reason=generation_pb2.FINISH_REASON_STOP, stop_id=2, num_tokens=num_tokens
            )
        ],
        usage=gateway_pb2.Usage(prompt_tokens=3, completion_tokens=num_tokens, total_tokens=3 + num_tokens),
        receipt=generation_pb2.Receipt(
            engine_id="engine-1", moves=1, tier=generation_pb2.EXACTNESS_TIER_SAME_TOKENS
        ),
        session_version=session_version,
    )
    return gateway_pb2.GenerateResponse(seq_id=seq_id, complete=event)


def play(*responses: gateway_pb2.GenerateResponse) -> Script:
    """Answers with these and OK."""

    def script(request, context):
        yield from responses

    return script


def break_after(
    *responses: gateway_pb2.GenerateResponse,
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
    details: tuple[object, ...] = (),
) -> Script:
    """Answers with these, then ends badly."""

    def script(request, context):
        yield from responses
        status = status_pb2.Status(code=code.value[0], message="it broke")
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        if details:
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, "it broke")

    return script


def error_info(reason: str) -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain="pagemesh")
