"""transformers' own chat encoding and ours give the same ids."""

from pathlib import Path
from typing import Any

import pytest

from services.tokenizer.prompt_encoder import Limit
from services.tokenizer.truncation import Side
from tests.support.tokenizer_families import talk
from tests.unit.tokenizer.conftest import OpenPipeline

CHATS = (
    (("user", "What is the capital of France?"),),
    (("system", "Be brief."), ("user", "x  5")),
    (("user", "a"), ("assistant", " b \n"), ("user", "\n\nc")),
    (("user", "a"), ("user", "b")),
    (("assistant", "first"), ("user", "then")),
    (("system", "only"),),
    (("user", ""), ("tool", "12345"), ("user", " ")),
    (("user", "汉字 👩‍👩‍👧 naïve " * 50),),
)


@pytest.fixture(scope="module")
def oracle(real_folder: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 (slow to import)

    return AutoTokenizer.from_pretrained(real_folder)


@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
async def test_chat_ids_are_those_of_transformers(
    oracle: Any, pipeline: OpenPipeline, chat: tuple[tuple[str, str], ...]
) -> None:
    messages = [{"role": role, "content": content} for role, content in chat]
    expected = oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    async with pipeline("real") as opened:
        encoded = await opened.encoder.encode_conversation(talk(*chat), Limit(8192, Side.NONE))
        assert list(encoded.ids) == expected


async def test_raw_ids_are_those_of_transformers(oracle: Any, pipeline: OpenPipeline) -> None:
    async with pipeline("real") as opened:
        for text in ("hello  world 123", " ", "\n\n", "a\x00b", "Ünï 汉字"):
            encoded = await opened.encoder.encode_text(text, Limit(8192, Side.NONE))
            assert list(encoded.ids) == oracle(text)["input_ids"]
