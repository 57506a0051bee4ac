"""First code of every child: ties its life to the parent's, steps back, then becomes the service.

A function between fork and exec would do the same, but is not safe in a process with gRPC's threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """argv: the parent's pid, the niceness to add, then the command."""
    parent_pid, niceness, *command = argv
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent_pid):  # the parent died before the leash was on
        return
    os.nice(int(niceness))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
