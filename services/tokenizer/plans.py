"""Plans of prompts: the pieces that a template makes of a pattern of roles, learned once per pattern."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.tokenizer.lru import Lru
from services.tokenizer.outline import Outline, Part, Piece, Run, cut_at_controls
from services.tokenizer.prompt import Conversation, Turn
from services.tokenizer.template_worker import TemplateWorker
from services.tokenizer.vocabulary import Vocabulary

PLAN_BYTES = 4 << 20
PIECE_BYTES = 256
"""What a cached plan costs per piece, roughly."""

HISTORY = (Turn("user", "a"), Turn("assistant", "b"))
"""Stands in front of a session's next turn, so that the template writes what closes the last one."""
ANSWER = 1
"""Index of the answer in HISTORY."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a conversation of certain roles becomes ids."""

    parts: tuple[Part, ...]
    pieces: tuple[Piece, ...]
    is_dated: bool


class Plans:
    """Asks the template for outlines and keeps the plans."""

    def __init__(self, vocabulary: Vocabulary, worker: TemplateWorker, mark: str) -> None:
        """`mark` is a text that no caller can guess."""
        self._vocabulary = vocabulary
        self._worker = worker
        self._mark = mark
        self._plans: Lru[tuple[str, ...], Plan | _Opaque] = Lru(PLAN_BYTES)

    async def plan(self, conversation: Conversation) -> Plan | None:
        """The plan for these turns' roles; None if the template has to see the contents. Raises MeshError."""
        roles = tuple(turn.role for turn in conversation.turns)
        known = self._plans.get(roles)
        if known is None:
            outline = await self._worker.outline(roles, self._mark, conversation)
            known = self._plan_of(outline)
            if not outline.is_dated:
                self._plans.put(roles, known, PIECE_BYTES * (1 + _num_pieces(known)))
        return None if isinstance(known, _Opaque) else known

    async def continuation(self, conversation: Conversation) -> tuple[Piece, ...] | None:
        """Pieces that follow an answer when these turns come next; None if they cannot only be appended."""
        hidden = Conversation((*HISTORY, *conversation.turns), conversation.path, len(HISTORY))
        plan = await self.plan(hidden)
        return None if plan is None else pieces_after(plan.pieces, ANSWER)

    def _plan_of(self, outline: Outline) -> "Plan | _Opaque":
        if outline.parts is None:
            return _Opaque()
        pieces = cut_at_controls(outline.parts, self._vocabulary.find_controls)
        return Plan(outline.parts, pieces, outline.is_dated)


class _Opaque:
    """Remembers that a pattern has no plan."""


def _num_pieces(plan: Plan | _Opaque) -> int:
    return 0 if isinstance(plan, _Opaque) else len(plan.pieces)


def pieces_after(pieces: Sequence[Piece], index: int) -> tuple[Piece, ...] | None:
    """Pieces behind content `index`; None unless a control token follows and no earlier content returns."""
    for position, piece in enumerate(pieces):
        if isinstance(piece, Run) and index in piece.parts:
            rest = tuple(pieces[position + 1 :])
            is_closed = piece.parts[-1] == index and not piece.strips_right and bool(rest)
            return rest if is_closed and not _places_any(rest, index) else None
    return None


def _places_any(pieces: Sequence[Piece], last_index: int) -> bool:
    runs = [piece for piece in pieces if isinstance(piece, Run)]
    return any(isinstance(part, int) and part <= last_index for run in runs for part in run.parts)


def head_pieces(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Pieces in front of the first content."""
    for position, piece in enumerate(pieces):
        if isinstance(piece, Run) and piece.has_content:
            return pieces[:position]
    return pieces


def overlap(tail: Sequence[int], head: Sequence[int]) -> int:
    """How many of the first ids of `head` already end `tail`."""
    longest = min(len(tail), len(head))
    return next((n for n in range(longest, 0, -1) if list(tail[-n:]) == list(head[:n])), 0)
