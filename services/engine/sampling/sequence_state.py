"""An executor's own copy of one sequence: its ids so far and the counts that penalties need.

Built from all ids at once, so cached, resumed and fresh sequences are penalised alike.
"""

from collections import Counter

from services.engine.step import SamplingSpec, SequenceSpec


class SequenceState:
    """Grows by append only."""

    __slots__ = ("_num_prompt_tokens", "_seen", "ids", "output_counts", "sampling", "sequence_id")

    def __init__(self, spec: SequenceSpec) -> None:
        self.sequence_id = spec.sequence_id
        self.sampling: SamplingSpec = spec.sampling
        self.ids = list(spec.ids)
        self.output_counts = Counter(spec.ids[spec.num_prompt_tokens :])
        self._seen = dict.fromkeys(spec.ids)
        self._num_prompt_tokens = spec.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """Ids drawn so far, those of earlier admissions included."""
        return len(self.ids) - self._num_prompt_tokens

    @property
    def seen_ids(self) -> dict[int, None]:
        """Every id of prompt and output, once."""
        return self._seen

    def append(self, token_id: int) -> None:
        """Takes one drawn id."""
        self.ids.append(token_id)
        self.output_counts[token_id] += 1
        self._seen[token_id] = None
