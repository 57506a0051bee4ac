"""`python -m services.scheduler`."""

from services.chassis.entry import run_process
from services.chassis.log import start_logging
from services.chassis.settings import load_settings
from services.scheduler.settings import SchedulerSettings
from services.scheduler.wiring import SERVICE, serve


def main() -> None:
    """Serves until SIGTERM."""
    settings = load_settings(SchedulerSettings)
    start_logging(SERVICE, settings.log_level)
    run_process(SERVICE, lambda: serve(settings))


if __name__ == "__main__":
    main()
