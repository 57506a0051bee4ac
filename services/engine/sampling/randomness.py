"""Position-keyed randomness: the uniform number behind a draw is a pure function of (seed, choice, position).

So a draw does not depend on neighbours, chunks, caches, preemption or the engine that makes it.
"""

import hashlib
import struct

_NUM_BITS = 53
"""What a float64 holds exactly."""


def uniform(seed: int, choice: int, position: int) -> float:
    """Gives u in [0, 1): the top 53 bits of BLAKE2b-64 over (seed u64, choice u32, position u32), all LE.

    `position` is the absolute index of the drawn id in its sequence. BLAKE2b: RFC 7693.
    """
    digest = hashlib.blake2b(struct.pack("<QII", seed, choice, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> (64 - _NUM_BITS)) / 2.0**_NUM_BITS
