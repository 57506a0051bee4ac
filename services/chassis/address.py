"""host:port as people write it, IPv6 in brackets."""


def split_address(address: str) -> tuple[str, int]:
    """Host (without brackets) and port. Raises ValueError saying what is expected."""
    host, separator, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("expected host:port with a port of 0..65535")
    if ":" in host and not is_bracketed:
        raise ValueError("expected an IPv6 host in brackets, as [::1]:7600")
    return (host[1:-1] if is_bracketed else host), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of split_address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
