"""How long a device computes: CUDA events where there is CUDA, else the host's clock."""

import time

import torch


class DeviceClock:
    """Runs from its construction to `stop`; asking for the time waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        self._started_ns = self._stopped_ns = time.perf_counter_ns()
        if device.type == "cuda":
            self._events = _event(), _event()
            self._events[0].record()

    def stop(self) -> None:
        self._stopped_ns = time.perf_counter_ns()
        if self._events is not None:
            self._events[1].record()

    def elapsed_us(self) -> int:
        if self._events is None:
            return (self._stopped_ns - self._started_ns) // 1000
        self._events[1].synchronize()
        return int(self._events[0].elapsed_time(self._events[1]) * 1000)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
