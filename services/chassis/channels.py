"""How every hop dials: keep-alive, limits and TLS that agree with `server`."""

import json
from pathlib import Path

import grpc

from services.chassis.settings import ServiceSettings

MAX_PING_GAP_S = 5.0
"""Servers allow at least one ping in so long: the public client's 10 s are below no deployment's minimum."""
MAX_METADATA_BYTES = 16 * 2**10
EXTRA_BYTES = 2**20
"""Internal messages may exceed the public limit by so much."""

Options = list[tuple[str, int | str]]


def shared_options(settings: ServiceSettings) -> Options:
    """Options that both ends of every hop set alike."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes + EXTRA_BYTES),
        ("grpc.max_send_message_length", settings.max_message_bytes + EXTRA_BYTES),
        ("grpc.keepalive_time_ms", round(settings.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(settings.keepalive_s * 500)),
        # What counts in fact: without it gRPC waits a minute for the answer, whatever the timeout says.
        ("grpc.http2.ping_timeout_ms", round(settings.keepalive_s * 500)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
    ]


def min_ping_gap_ms(settings: ServiceSettings) -> int:
    """What servers allow: clearly below the interval, since equal values still fail through jitter."""
    return round(min(MAX_PING_GAP_S, settings.keepalive_s / 2) * 1000)


def open_channel(target: str, *, settings: ServiceSettings) -> grpc.aio.Channel:
    """A channel to host:port, or to all addresses of a dns:///name:port in turn. It connects on first use."""
    options = [*shared_options(settings), *_dial_options()]
    if settings.tls_ca is None:
        return grpc.aio.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=settings.tls_ca.read_bytes(),
        private_key=_read(settings.tls_key),
        certificate_chain=_read(settings.tls_cert),
    )
    return grpc.aio.secure_channel(target, credentials, options=options)


def _dial_options() -> Options:
    balancing = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
    return [
        ("grpc.service_config", balancing),
        # A peer that restarts is found again at once; callers add their own backoff where they redial.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Retries are the callers': they know what may be done twice.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # One connection per channel: its fate is not shared with other channels of the process.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None
