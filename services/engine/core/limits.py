"""What the running set may hold and do in a step. Fixed while the process lives."""

from dataclasses import dataclass

RETURN_AFTER_US = 1_000_000
"""A sequence that waits in the engine this long without a step is returned."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in ids, blocks and sequences."""

    num_blocks: int
    """The null block among them."""
    block_size: int = 16
    max_sequences: int = 64
    max_batch_tokens: int = 2048
    """Rows through the model in a step."""
    chunk_tokens: int = 512
    """Ids of known text per sequence and step, and of all together while others decode."""
    max_model_len: int = 8192
    vocab_size: int = 49152
    max_ids_per_step: int = 1
    """Ids one row may draw."""
    window: int | None = None
    """Positions that a position sees, itself included; None: all before it."""

    @property
    def max_window_blocks(self) -> int:
        """Blocks that a sequence holds at most at once, beside hits: window, a chunk and one in flight."""
        if self.window is None:
            return self.num_blocks
        return -(-(self.window - 1 + 2 * self.chunk_tokens) // self.block_size) + 1

    @property
    def max_pool_tokens(self) -> int:
        """Ids the pool holds."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def num_reserve_blocks(self) -> int:
        """Kept from admissions, for those that run: a tenth."""
        return (self.num_blocks - 1) // 10
