"""Finds out why an address cannot be served on, before gRPC says only that it cannot."""

import socket

from services.chassis.address import join_address


class BindError(Exception):
    """One line: address, cause, remedy."""

    def __init__(self, address: str, cause: str) -> None:
        super().__init__(f"cannot listen on {address}: {cause}; stop what uses it or choose another address")


def check_free(host: str, port: int) -> None:
    """Raises BindError if host:port cannot be bound now. Port 0 is always free."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise BindError(join_address(host, port), error.strerror or "host is not known") from error
    family, kind, protocol, _, address = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise BindError(join_address(host, port), (error.strerror or str(error)).lower()) from error
