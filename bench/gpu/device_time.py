"""Times work on the device, and the bandwidth that its memory gives."""

import statistics
import time
from collections.abc import Callable

import torch


def median_ms(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median over single runs, each waited for, after two that warm up."""
    return statistics.median(times_ms(work, repeats, device))


def times_ms(work: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    for _ in range(2 if device.type == "cuda" else 0):
        work()
    times = []
    for _ in range(repeats):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        times.append((time.perf_counter() - started) * 1000)
    return times


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth_gb_s(device: torch.device) -> float:
    """The faster of reading and copying one large tensor; GB are 10^9 bytes."""
    num_bytes = 2**32 if device.type == "cuda" else 2**24
    values = torch.ones(num_bytes // 4, dtype=torch.int32, device=device)
    copied = torch.empty_like(values)
    reading = num_bytes / median_ms(values.max, 10, device)
    copying = 2 * num_bytes / median_ms(lambda: copied.copy_(values), 10, device)
    return max(reading, copying) / 1e6
