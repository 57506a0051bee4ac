"""A process entry: runs a service's main and turns its end into an exit code, one line for a known cause."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from services.chassis.bind import BindError
from services.chassis.event_loop import BurstLoop
from services.chassis.server import EXIT_BIND

EXIT_FAILED = 1

logger = logging.getLogger(__name__)


def run_process(
    name: str, main: Callable[[], Coroutine[Any, Any, int]], expected: tuple[type[Exception], ...] = ()
) -> NoReturn:
    """Runs main and exits with its result. `expected` errors (a bad model folder) exit 1 with one line."""
    try:
        with asyncio.Runner(loop_factory=BurstLoop) as runner:
            code = runner.run(main())
    except BindError as error:
        code = _say(name, error, EXIT_BIND)
    except expected as error:
        code = _say(name, error, EXIT_FAILED)
    except Exception:
        logger.exception("process failed")
        code = EXIT_FAILED
    sys.exit(code)


def _say(name: str, error: Exception, code: int) -> int:
    print(f"{name}: {error}", file=sys.stderr, flush=True)
    return code
