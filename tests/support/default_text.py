"""Text and ids of the default model's own tokenizer, as its library has them."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from services.contract.model_folder import resolve_model


class DefaultText:
    """The library's encode and decode, without the mesh."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(resolve_model("smollm2") / "tokenizer.json"))
        self.vocab_size = self._tokenizer.get_vocab_size()

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def pieces(self, *pieces: str) -> list[int]:
        """One id per piece; fails if a piece is not one token."""
        ids = [self.ids(piece) for piece in pieces]
        assert all(len(one) == 1 for one in ids), dict(zip(pieces, ids, strict=True))
        return [one[0] for one in ids]

    def text(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def broken_ids(self) -> list[int]:
        """Ids whose bytes alone are no valid UTF-8."""
        return [token_id for token_id in range(self.vocab_size) if "\ufffd" in self.text([token_id])]
