"""Encodes the hot queries once, so that the first callers meet warm caches."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.contract.errors import MeshError
from services.tokenizer.prompt import Conversation, Turn
from services.tokenizer.prompt_encoder import Limit, PromptEncoder


class HotQueriesError(Exception):
    """The file is not usable. One line: path, cause, remedy."""


def read_hot_queries(file: Path) -> list[str]:
    """Questions of a file: each line a JSON string or the text itself; blank lines are skipped."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise HotQueriesError(f"{file}: {cause}; give another file with --hot-queries") from error
    return [_query(line) for line in lines if line.strip()]


def _query(line: str) -> str:
    if line.startswith('"'):
        try:
            value = json.loads(line)
        except ValueError:
            return line
        if isinstance(value, str):
            return value
    return line


async def preheat(
    encoder: PromptEncoder, queries: Iterable[str], limit: Limit, *, has_chat: bool
) -> Sequence[str]:
    """Encodes each as a user's first turn (raw text without a template). Returns those that were refused."""
    refused = []
    for query in queries:
        try:
            if has_chat:
                turns = (Turn("user", query),)
                await encoder.encode_conversation(Conversation(turns, "conversation.segments"), limit)
            else:
                await encoder.encode_text(query, limit)
        except MeshError:
            refused.append(query)
    return refused
