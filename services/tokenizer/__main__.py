"""`python -m services.tokenizer`."""

from services.chassis.entry import run_process
from services.chassis.log import start_logging
from services.chassis.settings import load_settings
from services.contract.model_folder import ModelFolderError
from services.tokenizer.preheat import HotQueriesError
from services.tokenizer.settings import TokenizerSettings
from services.tokenizer.wiring import SERVICE, serve


def main() -> None:
    """Serves until SIGTERM."""
    settings = load_settings(TokenizerSettings)
    start_logging(SERVICE, settings.log_level)
    run_process(SERVICE, lambda: serve(settings), expected=(ModelFolderError, HotQueriesError))


if __name__ == "__main__":
    main()
