"""A Locust user for teams that use Locust:

    PYTHONPATH=. locust -f bench/locust_user.py --host 127.0.0.1:7600 --users 16

Each user is one stream of a closed loop. Locust's table gets a row for the whole answer, one for the time to
first token and one for the time per output token. Locust knows no intended send times and shows percentiles
of any number of samples: for figures to believe use `pagemesh bench`.
"""

import time
from typing import Any

import grpc
from grpc.experimental import gevent as grpc_gevent

from bench.load.prompts import conversations
from bench.load.spec import LoadSpec
from pagemesh.errors import PagemeshError, error_of
from pagemesh.gateways import CHANNEL_OPTIONS, DEFAULT_ADDRESS
from pagemesh.request import RawText, generate_request
from pagemesh.v1.gateway_pb2_grpc import GatewayServiceStub

try:
    from locust import User, constant, task
except ModuleNotFoundError:
    raise SystemExit("bench/locust_user.py needs Locust: pip install locust") from None

grpc_gevent.init_gevent()  # Locust's users are greenlets: without this a call would stop all of them

MAX_TOKENS = 64
TIMEOUT_S = 600.0
_PROMPTS = conversations(LoadSpec(target="", max_tokens=MAX_TOKENS))


class PagemeshUser(User):  # type: ignore[misc]  # Locust is not installed here
    """Asks for greedy completions of the load tool's prompts, one after the other."""

    host = DEFAULT_ADDRESS
    wait_time = constant(0)

    def on_start(self) -> None:
        self._channel = grpc.insecure_channel(self.host, options=list(CHANNEL_OPTIONS.items()))
        self._stub = GatewayServiceStub(self._channel)

    def on_stop(self) -> None:
        self._channel.close()

    @task  # type: ignore[untyped-decorator]
    def generate(self) -> None:
        prompt = RawText(next(_PROMPTS).turns[0])
        request = generate_request(prompt, max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
        begin_s = time.perf_counter()
        token_times_s: list[float] = []
        num_tokens, error = 0, None
        try:
            for event in self._stub.Generate(request, timeout=TIMEOUT_S):
                if event.HasField("token"):
                    token_times_s.append(time.perf_counter())
                    num_tokens += len(event.token.ids)
        except grpc.RpcError as raised:
            error = error_of(raised)
        self._tell("answer", time.perf_counter() - begin_s, num_tokens, error)
        if token_times_s:
            self._tell("first token", token_times_s[0] - begin_s, 1, None)
        if num_tokens > 1:
            per_token_s = (token_times_s[-1] - token_times_s[0]) / (num_tokens - 1)
            self._tell("per output token", per_token_s, num_tokens, None)

    def _tell(self, name: str, elapsed_s: float, num_tokens: int, error: PagemeshError | None) -> None:
        """Locust's lengths are tokens here."""
        fields: dict[str, Any] = {"response_length": num_tokens, "exception": error, "context": {}}
        self.environment.events.request.fire(
            request_type="Generate", name=name, response_time=elapsed_s * 1000, **fields
        )
