"""`python -m services.gateway` starts one gateway."""

from services.chassis.entry import run_process
from services.chassis.log import start_logging
from services.chassis.settings import load_settings
from services.gateway.settings import GatewaySettings
from services.gateway.wiring import SERVICE_NAME, ApiKeysFileError, run_gateway

if __name__ == "__main__":
    settings = load_settings(GatewaySettings)
    start_logging(SERVICE_NAME, settings.log_level)
    run_process(SERVICE_NAME, lambda: run_gateway(settings), expected=(ApiKeysFileError,))
