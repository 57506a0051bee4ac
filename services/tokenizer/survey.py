"""Tries a template at start: can segments be encoded one by one and joined, and do sessions only append?"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.contract.errors import MeshError
from services.tokenizer.outline import Control, Part
from services.tokenizer.plans import ANSWER, Plan, Plans, pieces_after
from services.tokenizer.prompt import Conversation, Turn
from services.tokenizer.template_worker import TemplateWorker
from services.tokenizer.vocabulary import Vocabulary

PATTERNS: tuple[tuple[str, ...], ...] = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
)
CONTENTS = (
    "plain words",
    "  spaces around  ",
    "\n\nlines\n",
    "x  5 12",
    "é\u0301 ñ 汉字 👩‍👩‍👧",
    "</think> [INST] 'q'",
    "",
)
"""Contents at which templates and vocabularies part: edges, digits, marks, other markup, nothing."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the trial showed."""

    has_safe_seams: bool
    is_append_only: bool


async def survey(vocabulary: Vocabulary, plans: Plans, worker: TemplateWorker) -> Survey:
    """Tries the patterns that the template accepts; one that it refuses (no system role) says nothing."""
    learned: dict[tuple[str, ...], Plan] = {}
    for roles in PATTERNS:
        try:
            plan = await plans.plan(_conversation(roles, ["a"] * len(roles)))
        except MeshError:
            continue
        if plan is None or not await _joins(vocabulary, worker, roles, plan):
            return Survey(has_safe_seams=False, is_append_only=False)
        learned[roles] = plan
    return Survey(has_safe_seams=bool(learned), is_append_only=_only_appends(learned))


def _conversation(roles: Sequence[str], contents: Sequence[str]) -> Conversation:
    turns = tuple(Turn(role, content) for role, content in zip(roles, contents, strict=True))
    return Conversation(turns, "conversation.segments")


async def _joins(vocabulary: Vocabulary, worker: TemplateWorker, roles: Sequence[str], plan: Plan) -> bool:
    """True if joined ids are those of the rendered whole, for every content at every place."""
    for shift in range(len(CONTENTS)):
        contents = [CONTENTS[(shift + index) % len(CONTENTS)] for index in range(len(roles))]
        text, _ = await worker.render(contents, _conversation(roles, contents))
        if _joined(vocabulary, plan, contents) != list(vocabulary.encode_trusted(text)):
            return False
    return True


def _joined(vocabulary: Vocabulary, plan: Plan, contents: Sequence[str]) -> list[int]:
    ids: list[int] = []
    for piece in plan.pieces:
        ids += [piece.id] if isinstance(piece, Control) else vocabulary.encode_runs([piece.fill(contents)])[0]
    return ids


def _only_appends(learned: dict[tuple[str, ...], Plan]) -> bool:
    """True if every longer pattern begins with the shorter one and adds the same behind its answer."""
    pairs = [(head, whole) for whole in learned for head in learned if _is_next_turn(head, whole)]
    if not pairs or any(pieces_after(learned[w].pieces, len(w) - 2) is None for _, w in pairs):
        return False
    tails = {_tail(learned[whole].parts, len(whole) - 2) for _, whole in pairs}
    return len(tails) == 1 and all(
        learned[whole].parts[: len(learned[head].parts) + 1] == (*learned[head].parts, len(head))
        for head, whole in pairs
    )


def _is_next_turn(head: Sequence[str], whole: Sequence[str]) -> bool:
    return whole == (*head, "assistant", "user")


def _tail(parts: Sequence[Part], answer: int) -> tuple[Part, ...]:
    """Parts behind the answer, counted as if the history were the shortest."""
    behind = parts[list(parts).index(answer) + 1 :]
    return tuple(part - answer + ANSWER if isinstance(part, int) else part for part in behind)
