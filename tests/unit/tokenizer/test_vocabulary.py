"""The vocabulary's two tokenizers, its bytes, and files that are not usable."""

import json

import pytest
from tokenizers import Tokenizer

from services.tokenizer.vocabulary import RunText, Vocabulary, VocabularyError
from tests.support.tokenizer_families import MARK, Family


def test_truncation_and_padding_in_the_file_are_never_switched_on(families: dict[str, Family]) -> None:
    tokenizer = Tokenizer.from_str(families["byte-level"].definition.decode())
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=12)
    vocabulary = Vocabulary(tokenizer.to_str().encode(), MARK)
    (ids,) = vocabulary.encode_runs([RunText("the capital of France is Paris", is_head=True)])
    assert len(ids) > 4
    assert list(vocabulary.encode_trusted("a")) == vocabulary.encode_runs([RunText("a", is_head=True)])[0]


@pytest.mark.parametrize("definition", [b"", b"[]", b"{}", b'{"model": {"type": "BPE"}}', b"\xff"])
def test_a_bad_definition_is_one_short_cause(definition: bytes) -> None:
    with pytest.raises(VocabularyError):
        Vocabulary(definition, MARK)


def test_prefix_ids_are_the_post_processors(vocabularies: dict[str, Vocabulary]) -> None:
    prefixes = {name: vocabulary.prefix_ids for name, vocabulary in vocabularies.items()}
    assert prefixes == {"real": (), "byte-level": (0,), "unigram": (1,), "llama-bpe": (1,)}


def test_decoding_agrees_with_the_library_on_valid_text(
    families: dict[str, Family], vocabularies: dict[str, Vocabulary]
) -> None:
    for name, family in families.items():
        library = Tokenizer.from_str(family.definition.decode())
        vocabulary = vocabularies[name]
        for text in ("hello  world", " leading", "naïve 我很高兴 👩‍👩‍👧 ไทย", "a\nb\tc"):
            ids = library.encode(text, add_special_tokens=True).ids
            for skip in (False, True):
                expected = library.decode(ids, skip_special_tokens=skip)
                decoded = vocabulary.token_bytes.decode(ids, skip)
                assert decoded.removeprefix("<s>").lstrip(" ") == expected.removeprefix("<s>").lstrip(" "), (
                    name
                )


def test_each_maximal_invalid_part_is_one_replacement(vocabularies: dict[str, Vocabulary]) -> None:
    vocabulary = vocabularies["byte-level"]
    by_bytes = {token: token_id for token_id, token in enumerate(vocabulary.token_bytes.table)}
    for raw in (b"\xf0\x9f\x98", b"\xf0\x9f a", b"\x80\x80", b"\xe4\xbd\xf0\x9f", b"\xc0\xaf", b"ok\xff"):
        ids = [by_bytes[bytes([byte])] for byte in raw]
        assert vocabulary.token_bytes.decode(ids, False) == raw.decode("utf-8", "replace")


def test_special_tokens_are_left_out_when_asked(vocabularies: dict[str, Vocabulary]) -> None:
    vocabulary = vocabularies["byte-level"]
    (tool,) = vocabulary.encode_trusted("<tool>")
    (end,) = vocabulary.encode_trusted("<|im_end|>")
    assert vocabulary.token_bytes.decode([tool, end], skip_special_tokens=True) == "<tool>"
    assert vocabulary.token_bytes.decode([tool, end], skip_special_tokens=False) == "<tool><|im_end|>"


def test_hidden_entries_keep_every_id(
    families: dict[str, Family], vocabularies: dict[str, Vocabulary]
) -> None:
    for name, family in families.items():
        size = Tokenizer.from_str(family.definition.decode()).get_vocab_size()
        assert vocabularies[name].size == size
        spec = json.loads(family.definition)
        text = "".join(token["content"] for token in spec["added_tokens"])
        (ids,) = vocabularies[name].encode_runs([RunText(text, is_head=False)])
        assert max(ids) < size
