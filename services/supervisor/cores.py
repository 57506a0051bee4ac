"""How engines of one machine divide its cores."""

import os


def thread_share(num_engines: int) -> dict[str, str]:
    """Environment that gives each engine its part, unless the caller has divided the cores.

    Two engines with a thread per core each wait for each other at every barrier: many times slower.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // max(1, num_engines)))}
