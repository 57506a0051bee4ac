"""Joined pieces are the ids of the rendered whole, and text never becomes a control token."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from services.tokenizer.chat_template import ChatTemplate
from services.tokenizer.outline import Control, Piece
from services.tokenizer.vocabulary import RunText, Vocabulary
from tests.support.tokenizer_families import plan

FAMILIES = ("real", "byte-level", "unigram", "llama-bpe")
PATTERNS = (("user",), ("system", "user"), ("user", "assistant", "user"), ("system", "user", "tool", "user"))
EDGES = (" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "▁", "\x00", "\ufffd", "'s")
SCRIPTS = ("user", "the capital", "x  5", "1234", "é", "e\u0301", "我很高兴", "👩\u200d👩\u200d👧")
MARKUP = ("<|", "|>", "im_", "</", "s>", "[INST]", "<0x0A>", "{{ x }}")
WORDS = st.sampled_from([*EDGES, *SCRIPTS, *MARKUP])
CONTENTS = st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=8).map("".join)
PROPERTY = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def joined(vocabulary: Vocabulary, pieces: Sequence[Piece], contents: Sequence[str]) -> list[int]:
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, Control):
            ids.append(piece.id)
        else:
            ids += vocabulary.encode_runs([piece.fill(contents)])[0]
    return ids


def rendered(template: ChatTemplate, roles: Sequence[str], contents: Sequence[str]) -> str:
    return template.render([{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]).text


@pytest.mark.parametrize("name", FAMILIES)
@PROPERTY
@given(data=st.data(), roles=st.sampled_from(PATTERNS))
def test_joined_ids_are_the_ids_of_the_rendered_whole(
    name: str,
    data: st.DataObject,
    roles: tuple[str, ...],
    vocabularies: dict[str, Vocabulary],
    templates: dict[str, ChatTemplate],
) -> None:
    vocabulary, template = vocabularies[name], templates[name]
    contents = [data.draw(CONTENTS) for _ in roles]
    assume(not any(vocabulary.find_controls(content) for content in contents))
    whole = list(vocabulary.encode_trusted(rendered(template, roles, contents)))
    assert joined(vocabulary, plan(template, vocabulary, roles), contents) == whole


@pytest.mark.parametrize("name", FAMILIES)
@PROPERTY
@given(data=st.data())
def test_text_that_spells_control_tokens_stays_text(
    name: str, data: st.DataObject, vocabularies: dict[str, Vocabulary], templates: dict[str, ChatTemplate]
) -> None:
    vocabulary, template = vocabularies[name], templates[name]
    spellings = sorted(token.content for token in vocabulary.controls.values())
    pieces_of_text = st.lists(st.one_of(st.sampled_from(spellings), WORDS), min_size=1, max_size=6)
    content = "".join(data.draw(pieces_of_text))
    roles = ("user", "assistant", "user")
    pieces = plan(template, vocabulary, roles)
    ids = joined(vocabulary, pieces, [content] * 3)
    written = [piece.id for piece in pieces if isinstance(piece, Control)]
    assert [token_id for token_id in ids if token_id in vocabulary.controls] == written
    (raw,) = vocabulary.encode_runs([RunText(content, is_head=True)])
    assert not vocabulary.controls.keys() & set(raw)


@pytest.mark.parametrize("name", ("real", "byte-level"))
@PROPERTY
@given(content=CONTENTS)
def test_byte_level_ids_decode_to_the_rendered_text(
    name: str, content: str, vocabularies: dict[str, Vocabulary], templates: dict[str, ChatTemplate]
) -> None:
    vocabulary, template = vocabularies[name], templates[name]
    known = {token[0] for token in vocabulary.token_bytes.table if len(token) == 1}
    assume(known >= set(content.encode()))  # the real vocabulary lacks a few bytes and drops them
    ids = joined(vocabulary, plan(template, vocabulary, ("user",)), [content])
    text = vocabulary.token_bytes.decode(ids, skip_special_tokens=False)
    assert text == rendered(template, ("user",), [content])


def test_every_control_token_lies_alone(
    vocabularies: dict[str, Vocabulary], templates: dict[str, ChatTemplate]
) -> None:
    pieces = plan(templates["real"], vocabularies["real"], ("system", "user"))
    shown = [piece.id if isinstance(piece, Control) else piece.parts for piece in pieces]
    assert shown == [
        1, ("system\n", 0), 2, ("\n",), 1, ("user\n", 1), 2, ("\n",), 1, ("assistant\n",),
    ]  # fmt: skip


def test_digits_stand_alone_in_the_real_vocabulary(vocabularies: dict[str, Vocabulary]) -> None:
    vocabulary = vocabularies["real"]
    (ids,) = vocabulary.encode_runs([RunText("x  5", is_head=True)])
    assert [vocabulary.token_bytes.table[token_id] for token_id in ids] == [b"x", b"  ", b"5"]
