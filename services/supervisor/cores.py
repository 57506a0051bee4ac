"""How engines of one machine divide its cores."""

import os

BY_CALLER = "PAGEMESH_ENGINE_NUM_THREADS"


def thread_share(num_engines: int) -> dict[str, object]:
    """Settings that give each engine its part; none for a single one, or where the caller has divided them.

    Two engines with a thread per core each wait for each other at every barrier: many times slower.
    """
    if num_engines < 2 or BY_CALLER in os.environ:
        return {}
    return {"num_threads": max(1, len(os.sched_getaffinity(0)) // num_engines)}
