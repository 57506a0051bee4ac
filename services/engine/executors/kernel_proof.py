"""Proves by a profiler's trace of one step which attention kernel runs."""

from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from services.engine.executors.registry import UnprovenKernelError


def prove_kernel(step: Callable[[], object], promised: Sequence[str], device: torch.device) -> str:
    """Runs the step under a profiler; gives the first traced name that holds a promised one.

    Raises UnprovenKernelError.
    """
    names = traced_names(step, device)
    seen = [name for name in names if any(part in name for part in promised)]
    if seen:
        return seen[0]
    others = [name for name in names if "attention" in name.lower() or "flash" in name.lower()]
    found = f"it shows {', '.join(others[:3])}" if others else f"none of its {len(names)} names is one"
    raise UnprovenKernelError(
        f"a trace of one step does not show the attention kernel {' or '.join(promised)}: {found}"
    )


def traced_names(step: Callable[[], object], device: torch.device) -> list[str]:
    """Operators and, on a GPU, kernels of one run of the step, kernels first."""
    step()  # compiles and loads what the trace should not see
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    with profile(activities=activities) as trace:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    events = trace.events() or ()
    is_kernel = [event.device_type.name != "CPU" for event in events]
    kernels = [event.name for event, ok in zip(events, is_kernel, strict=True) if ok]
    operators = [event.name for event, ok in zip(events, is_kernel, strict=True) if not ok]
    return list(dict.fromkeys(kernels + operators))
