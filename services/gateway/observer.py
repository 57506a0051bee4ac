"""What one running request adds to the instruments and to its server span."""

from services.contract.priority import Priority
from services.gateway.end_words import EndFacts
from services.gateway.life.hop_clock import Stage
from services.gateway.life.request_words import EmitTokens
from services.gateway.metrics import GatewayMetrics, label
from services.gateway.plan import Plan
from services.gateway.request_trace import RequestTrace
from services.gateway.running_requests import RunningRequest


class RequestObserver:
    """Counts from the first enqueue to `close`."""

    def __init__(
        self, metrics: GatewayMetrics, end_facts: EndFacts, priority: Priority, entry: RunningRequest
    ) -> None:
        self._metrics = metrics
        self._end_facts = end_facts
        self._entry = entry
        self._priority = label(priority)
        self._waiting = metrics.waiting.labels(priority=self._priority)
        self._running = metrics.running.labels(priority=self._priority)
        self._ttft = metrics.ttft.labels(priority=self._priority)
        self._itl = metrics.itl.labels(priority=self._priority)
        self._is_running = False
        self._waiting.inc()

    def running(self, is_running: bool) -> None:
        """Whether a choice of it is with an engine."""
        if is_running == self._is_running:
            return
        self._is_running = is_running
        self._entry.was_admitted = True
        self._running.inc(1 if is_running else -1)
        self._waiting.inc(-1 if is_running else 1)

    def stale(self, num_tokens: int) -> None:
        """Tokens of an old attempt were dropped."""
        self._metrics.stale_tokens.inc(num_tokens)

    def token_written(self, tokens: EmitTokens, now: float, before_s: float | None) -> None:
        """A token event was accepted; before_s is when its choice's last one was."""
        self._metrics.tokens.inc(len(tokens.ids))
        if self._end_facts.first_token_s is None:
            self._end_facts.first_token_s = now
            self._ttft.observe(now - self._end_facts.hops.arrived_s)
        if before_s is not None:
            self._itl.observe(now - before_s)

    def close(self, trace: RequestTrace, plan: Plan) -> None:
        """The request has ended, however."""
        self.running(False)
        self._waiting.dec()
        life = self._end_facts.life
        assert life is not None
        account = life.account
        queue_s = self._end_facts.hops.closed_spent(Stage.QUEUE)
        self._metrics.queue.labels(priority=self._priority).observe(queue_s)
        self._metrics.moves.inc(account.num_moves)
        self._metrics.prompt_tokens.inc(self._end_facts.num_prompt_tokens)
        self._metrics.cached_tokens.inc(account.num_cached)
        trace.describe(
            {
                "gen_ai.request.model": plan.route.model,
                "gen_ai.request.choice.count": plan.spec.n,
                "gen_ai.usage.input_tokens": self._end_facts.num_prompt_tokens,
                "gen_ai.usage.output_tokens": self._end_facts.num_output_tokens,
                "pagemesh.cached_tokens": account.num_cached,
                "pagemesh.moves": account.num_moves,
                "pagemesh.priority": self._priority,
            }
        )
