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

    @property
    def max_pool_tokens(self) -> int:
        """Ids the pool holds."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def num_reserve_blocks(self) -> int:
        """Kept from admissions, for those that run: a tenth."""
        return (self.num_blocks - 1) // 10
