"""What an end says fits into a status whatever peers call themselves."""

import json

from services.contract.errors import MeshError, Reason
from services.contract.status import MAX_DETAILS_BYTES, to_status
from services.gateway.end_words import EndFacts, receipt_words
from services.gateway.life.hop_clock import HopClock
from services.gateway.life.request import RequestLife
from services.gateway.life.request_words import EngineFacts, RequestSpec, Tier
from services.gateway.text.detokenizer import TokenTable
from services.gateway.text.output_text import OutputRules, OutputText


def test_an_error_with_its_receipt_is_at_most_2_kib_whatever_an_engine_calls_itself() -> None:
    definition = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "decoder": {"type": "ByteLevel"}}
    table = TokenTable.from_definition(json.dumps(definition).encode())
    hops = HopClock(0.0)
    text = OutputText(table, (1,), OutputRules(max_tokens=1))
    life = RequestLife(RequestSpec(0, 1, 1, ((),)), [text], hops, lambda: 0.0, lambda: 0.5)
    huge = "é" * 5000
    life.account.computing_at(EngineFacts(huge, "b", huge, "r", Tier.SAME_TOKENS), False)
    life.account.queue_reason = huge
    receipt = receipt_words(EndFacts(hops, "0" * 32, life=life, is_history_saved=False), 12345.678)
    error = MeshError(Reason.QUOTA, huge, field=huge, retry_delay_s=1e6)
    assert to_status(error, receipt).ByteSize() <= MAX_DETAILS_BYTES
    assert receipt.engine_id == "é" * 64
