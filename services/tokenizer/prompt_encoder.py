"""From a checked prompt to ids: exact cache, plan, runs, limit. The one pipeline of this service.

Knows no protobuf, and no text leaves it in an error.
"""

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from services.contract.errors import MeshError, Reason, invalid_field
from services.tokenizer.guard import Guard, Veil, has_structure_of, take_out_all
from services.tokenizer.lru import Lru
from services.tokenizer.offsets import NOWHERE, byte_positions, content_offsets
from services.tokenizer.outline import Control, Piece, Run
from services.tokenizer.plans import Plans, head_pieces, overlap
from services.tokenizer.prompt import Conversation
from services.tokenizer.run_encoder import Ids, RunEncoder, as_array, entry_cost
from services.tokenizer.template_worker import TemplateWorker
from services.tokenizer.truncation import Side, truncate
from services.tokenizer.vocabulary import RunText, Vocabulary

MAX_SYSTEM_TOKENS = 512
MAX_OFFSETS_CHARS = 1 << 20
TURN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Limit:
    """How many ids a prompt may have and what happens above."""

    max_tokens: int
    side: Side


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's ids."""

    ids: Ids
    num_cached: int
    offsets: list[tuple[int, int]] | None = None
    num_truncated: int = 0


@dataclass(frozen=True, slots=True)
class Chat:
    """What a model with a chat template has."""

    plans: Plans
    worker: TemplateWorker
    is_append_only: bool
    has_safe_seams: bool


class PromptEncoder:
    """Encodes prompts. One per process; to be called on its event loop."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        runs: RunEncoder,
        chat: Chat | None,
        cache: Lru[Hashable, Ids],
        note_lookup: Callable[[bool], None],
        mark: str,
    ) -> None:
        """`note_lookup` takes whether the exact cache hit; `mark` is a text that no caller can guess."""
        self._vocabulary = vocabulary
        self._runs = runs
        self._chat = chat
        self._cache = cache
        self._note_lookup = note_lookup
        self._mark = mark

    async def encode_text(self, text: str, limit: Limit, *, wants_offsets: bool = False) -> EncodedPrompt:
        """Raw text, with what the post-processor puts around it."""
        self._check_size(num_bytes(text), limit, "text")
        if wants_offsets:
            _check_offsets(len(text))
            encoded = await self._runs.off_loop(len(text), self._text_with_offsets, text)
        else:
            encoded = self._cached(text) or await self._fresh_text(text)
        return self._limited(encoded, limit, "text")

    async def encode_conversation(
        self, conversation: Conversation, limit: Limit, *, wants_offsets: bool = False
    ) -> EncodedPrompt:
        """Turns by the template, with the generation prompt behind them."""
        chat = self._need_chat(conversation)
        self._check_size(_content_bytes(conversation), limit, conversation.path)
        await self._check_system(conversation, limit)
        if wants_offsets:
            _check_offsets(sum(len(turn.content) for turn in conversation.turns))
            encoded = await self._conversation_with_offsets(chat, conversation)
        else:
            encoded = self._cached(conversation.turns) or await self._fresh_conversation(chat, conversation)
        return self._limited(encoded, limit, conversation.path)

    async def encode_continuation(
        self, conversation: Conversation, tail_ids: Sequence[int], limit: Limit
    ) -> EncodedPrompt:
        """What a session's next turn adds: what still closes the answer, the turns, the generation prompt."""
        chat = self._need_chat(conversation)
        self._check_size(_content_bytes(conversation), limit, conversation.path)
        pieces = await chat.plans.continuation(conversation) if chat.is_append_only else None
        if pieces is None:
            reason = "this model's template rewrites earlier turns; send the whole conversation"
            raise MeshError(Reason.NOT_SUPPORTED, reason, field="continuation")
        contents = ["", "", *(turn.content for turn in conversation.turns)]
        encoded = await self._join(pieces, contents)
        closing = await self._join(head_pieces(pieces), contents)
        num_closed = overlap(tail_ids, closing.ids)
        encoded = EncodedPrompt(encoded.ids[num_closed:], encoded.num_cached)
        if len(encoded.ids) > limit.max_tokens and limit.side is not Side.NONE:
            raise MeshError(
                Reason.NOT_SUPPORTED, "a session's turn is not truncated", field="truncation_side"
            )
        return self._limited(encoded, limit, conversation.path)

    def _need_chat(self, conversation: Conversation) -> Chat:
        if self._chat is None:
            message = "this model has no chat template; send text or ids"
            raise MeshError(Reason.NOT_SUPPORTED, message, field=conversation.path)
        return self._chat

    def _check_size(self, size: int, limit: Limit, field: str) -> None:
        """Refuses what cannot fit before any time is spent on it."""
        longest = self._vocabulary.token_bytes.longest
        if limit.side is Side.NONE and size > limit.max_tokens * longest:
            message = f"prompt has {size} bytes; {limit.max_tokens} tokens hold at most "
            raise MeshError(Reason.TOO_LONG, f"{message}{limit.max_tokens * longest}", field=field)

    async def _check_system(self, conversation: Conversation, limit: Limit) -> None:
        first = conversation.turns[0]
        if first.role != "system" or limit.side is not Side.NONE:
            return
        if len(first.content.encode()) <= MAX_SYSTEM_TOKENS:  # an id stands for at least a byte
            return
        (encoded,) = await self._runs.encode([RunText(first.content, is_head=False)])
        if len(encoded.ids) > MAX_SYSTEM_TOKENS:
            message = f"system segment has {len(encoded.ids)} tokens; the limit is {MAX_SYSTEM_TOKENS}"
            raise MeshError(Reason.TOO_LONG, message, field=f"{conversation.path}[0].content")

    def _cached(self, key: Hashable) -> EncodedPrompt | None:
        ids = self._cache.get(key)
        self._note_lookup(ids is not None)
        return None if ids is None else EncodedPrompt(ids, num_cached=len(ids))

    def _remember(self, key: Hashable, texts: Sequence[str], ids: Ids) -> None:
        # A turn is an object and a slot of its tuple beside its text.
        cost = entry_cost(texts, len(ids)) + TURN_BYTES * len(texts)
        self._cache.put(key, as_array(ids), cost)

    async def _fresh_text(self, text: str) -> EncodedPrompt:
        (bare,) = await self._runs.off_loop(len(text), self._vocabulary.encode_runs, [RunText(text, True)])
        ids = array("I", self._vocabulary.prefix_ids)
        ids.extend(bare)
        ids.extend(self._vocabulary.suffix_ids)
        self._remember(text, [text], ids)
        return EncodedPrompt(ids, num_cached=0)

    async def _fresh_conversation(self, chat: Chat, conversation: Conversation) -> EncodedPrompt:
        plan = await chat.plans.plan(conversation) if chat.has_safe_seams else None
        contents = [turn.content for turn in conversation.turns]
        if plan is None:
            encoded, is_dated = await self._encode_whole(chat, conversation, contents)
        else:
            encoded, is_dated = await self._join(plan.pieces, contents), plan.is_dated
        if not is_dated:
            self._remember(conversation.turns, contents, encoded.ids)
        return encoded

    async def _join(self, pieces: Sequence[Piece], contents: Sequence[str]) -> EncodedPrompt:
        """Ids of pieces. Seams lie at control tokens, so the joined ids are those of the rendered whole."""
        runs = [piece.fill(contents) for piece in pieces if isinstance(piece, Run)]
        encoded = iter(await self._runs.encode(runs))
        ids = array("I")
        num_cached = 0
        for piece in pieces:
            if isinstance(piece, Control):
                ids.append(piece.id)
                continue
            run = next(encoded)
            ids.extend(run.ids)
            num_cached += len(run.ids) if run.is_cached else 0
        return EncodedPrompt(ids, num_cached)

    async def _encode_whole(
        self, chat: Chat, conversation: Conversation, contents: Sequence[str]
    ) -> tuple[EncodedPrompt, bool]:
        """For templates without safe seams: render with the contents and encode the whole."""
        num_chars = sum(map(len, contents))
        veil, guard, hidden = await self._runs.off_loop(num_chars, self._veiled, contents)
        text, is_dated = await chat.worker.render(contents, conversation)
        veiled, _ = await chat.worker.render(hidden, conversation)
        pieces = await self._runs.off_loop(
            len(text), lambda t: self._own_controls(t, veiled, veil, guard), text
        )
        if pieces is None:
            pieces = await self._read_contents(chat, conversation, text, guard.put_back(veiled), veil)
        if pieces:
            return await self._join(pieces, ()), is_dated
        ids: Ids = await self._runs.off_loop(len(text), self._vocabulary.encode_trusted, text)
        return EncodedPrompt(ids, num_cached=0), is_dated

    def _veiled(self, contents: Sequence[str]) -> tuple[Veil, Guard, list[str]]:
        try:
            veil = Veil((token.content for token in self._vocabulary.controls.values()), contents)
        except ValueError as error:
            raise invalid_field("conversation", str(error)) from error
        guard = Guard(self._vocabulary, self._mark)  # for control tokens of white space, which no veil covers
        return veil, guard, take_out_all(guard, [veil.put_on(content) for content in contents])

    def _own_controls(self, text: str, veiled: str, veil: Veil, guard: Guard) -> list[Piece] | None:
        """Pieces; none if the text can be encoded as it is, None if the template reads the contents."""
        if veil.take_off(guard.put_back(veiled)) != text:
            return None
        spans = self._vocabulary.find_controls(veiled)
        if any(veil.covers(veiled[span.start : span.end]) for span in spans):
            return None
        if not guard.is_needed and spans == self._vocabulary.find_controls(text):
            return []
        return guard.pieces(veiled, veil)

    async def _read_contents(
        self, chat: Chat, conversation: Conversation, text: str, veiled: str, veil: Veil
    ) -> list[Piece]:
        """For a template that reads contents: good if the control tokens are those that it writes anyway."""
        contents = [turn.content for turn in conversation.turns]
        guard = Guard(self._vocabulary, self._mark)
        guarded = await self._runs.off_loop(len(text), lambda texts: take_out_all(guard, texts), contents)
        # Not again without need: a template that tells the time would tell another one.
        rendered = (await chat.worker.render(guarded, conversation))[0] if guard.is_needed else text
        if guard.put_back(rendered) != text:
            message = "a content spells a control token that the chat template reads"
            raise MeshError(Reason.TEMPLATE, message, field=conversation.path)
        is_own = await self._runs.off_loop(
            len(text), lambda whole: has_structure_of(whole, veiled, veil, self._vocabulary), rendered
        )
        if not is_own:
            message = "the chat template makes other control tokens of these contents than of plain ones"
            raise MeshError(Reason.TEMPLATE, message, field=conversation.path)
        return await self._runs.off_loop(len(text), guard.pieces, rendered) if guard.is_needed else []

    def _text_with_offsets(self, text: str) -> EncodedPrompt:
        bare, offsets = self._vocabulary.encode_run_with_offsets(RunText(text, is_head=True))
        positions = byte_positions(text)
        prefix, suffix = self._vocabulary.prefix_ids, self._vocabulary.suffix_ids
        ranges = [(positions[start], positions[end]) for start, end in offsets]
        return EncodedPrompt(
            [*prefix, *bare, *suffix],
            num_cached=0,
            offsets=[*(NOWHERE for _ in prefix), *ranges, *(NOWHERE for _ in suffix)],
        )

    async def _conversation_with_offsets(self, chat: Chat, conversation: Conversation) -> EncodedPrompt:
        plan = await chat.plans.plan(conversation) if chat.has_safe_seams else None
        if plan is None:
            message = "this model's template has no safe seams, so there are no offsets"
            raise MeshError(Reason.NOT_SUPPORTED, message, field="return_offsets")
        contents = [turn.content for turn in conversation.turns]
        num_chars = sum(map(len, contents))
        return await self._runs.off_loop(
            num_chars, lambda pieces: self._join_with_offsets(pieces, contents), plan.pieces
        )

    def _join_with_offsets(self, pieces: Sequence[Piece], contents: Sequence[str]) -> EncodedPrompt:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for piece in pieces:
            if isinstance(piece, Control):
                ids.append(piece.id)
                offsets.append(NOWHERE)
                continue
            run_ids, ranges = self._vocabulary.encode_run_with_offsets(piece.fill(contents))
            ids.extend(run_ids)
            offsets.extend(content_offsets(piece, contents, ranges))
        return EncodedPrompt(ids, num_cached=0, offsets=offsets)

    def _limited(self, encoded: EncodedPrompt, limit: Limit, field: str) -> EncodedPrompt:
        num_over = len(encoded.ids) - limit.max_tokens
        if num_over <= 0:
            return encoded
        if limit.side is Side.NONE:
            message = f"prompt has {len(encoded.ids)} tokens; the limit is {limit.max_tokens}"
            raise MeshError(Reason.TOO_LONG, message, field=field)
        prefix = self._vocabulary.prefix_ids
        num_prefix = len(prefix) if tuple(encoded.ids[: len(prefix)]) == prefix else 0
        cut = (limit.max_tokens, limit.side, num_prefix)
        ids = truncate(encoded.ids, *cut)
        offsets = None if encoded.offsets is None else truncate(encoded.offsets, *cut)
        return EncodedPrompt(ids, min(encoded.num_cached, len(ids)), offsets, num_over)


def _content_bytes(conversation: Conversation) -> int:
    return sum(num_bytes(turn.content) for turn in conversation.turns)


def num_bytes(text: str) -> int:
    """In UTF-8, without a copy of what is long."""
    return len(text) if text.isascii() else len(text.encode())


def _check_offsets(num_chars: int) -> None:
    """Offsets are objects: they would take a hundred times the text's size."""
    if num_chars > MAX_OFFSETS_CHARS:
        message = f"prompt has {num_chars} characters; offsets are told for at most {MAX_OFFSETS_CHARS}"
        raise MeshError(Reason.TOO_LONG, message, field="return_offsets")


def check_tail(tail_ids: Sequence[int], vocab_size: int) -> None:
    """The end of a session's history."""
    if not tail_ids:
        raise invalid_field("continuation.tail_ids", "is empty")
    for index, token_id in enumerate(tail_ids):
        if token_id >= vocab_size:
            message = f"is {token_id}; the vocabulary has {vocab_size} ids"
            raise invalid_field(f"continuation.tail_ids[{index}]", message)
