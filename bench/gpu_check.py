"""Everything that must be seen on a GPU, in one command under 8 minutes; torch, triton, transformers suffice.

    python -m bench.gpu_check [--json report.json] [--budget-s 420] [--only decode_steps,draws]

What is not installed is said and left out. Each section runs in a process of its own, so that one that fails
or hangs loses no other. On a CPU the same sections run at small sizes, Triton's kernels interpreted.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, object]
SECTIONS = (
    "attention_errors",
    "kernel_proofs",
    "draws",
    "logit_errors",
    "decode_steps",
    "long_prompt",
    "prefill",
    "invariance",
    "fusions",
    "utilization",
)
"""The surest first: what time runs out for comes last."""
LIBRARIES = ("torch", "triton", "transformers", "flash-attn", "flash-attn-3", "flash-attn-4", "numpy")


def main() -> int:
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # read when torch is imported
    options = _options()
    if options.section:
        print(json.dumps(run_section(options.section)))
        return 0
    ends_s = time.monotonic() + options.budget_s
    report: dict[str, Any] = {"environment": environment(), "sections": {}}
    print(json.dumps(report["environment"]))
    for name in options.only.split(",") if options.only else SECTIONS:
        result = _run(name, ends_s - time.monotonic(), options.in_process)
        report["sections"][name] = result
        report["ok"] = is_ok(report["sections"])
        print(f"\n## {name} ({result['seconds']:.0f} s)\n\n{markdown(result['rows'])}\n{result['error']}")
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1))
    print("ok" if report["ok"] else "NOT ok")
    return 0 if report["ok"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the report, written after every section")
    parser.add_argument("--budget-s", type=float, default=420.0, help="seconds for all sections together")
    parser.add_argument("--only", default="", help="sections by name, separated by commas")
    parser.add_argument("--in-process", action="store_true", help="sections share this process")
    parser.add_argument("--section", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(name: str, left_s: float, is_in_process: bool) -> dict[str, Any]:
    if left_s < 5:
        return {"rows": [], "error": "no time left", "seconds": 0.0}
    if is_in_process:
        return run_section(name)
    command = [sys.executable, "-m", "bench.gpu_check", "--section", name]
    started_s = time.monotonic()
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=left_s, check=False)
    except subprocess.TimeoutExpired:
        return {"rows": [], "error": f"stopped after {left_s:.0f} s", "seconds": left_s}
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        seconds = time.monotonic() - started_s
        return {"rows": [], "error": f"ended with code {ended.returncode}", "seconds": seconds}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def run_section(name: str) -> dict[str, Any]:
    """Its rows, those before a failure too."""
    started_s = time.monotonic()
    rows: list[Row] = []
    error = ""
    try:
        rows.extend(_rows(name))
    except Exception:  # noqa: BLE001
        error = traceback.format_exc()
    return {"rows": rows, "error": error, "seconds": time.monotonic() - started_s}


def _rows(name: str) -> Iterator[Row]:
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported
    from bench.gpu import attention_sections, model_sections, step_sections  # noqa: PLC0415
    from bench.gpu.sizes import sizes_for  # noqa: PLC0415

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    modules = (attention_sections, model_sections, step_sections)
    section: Callable[[Any], Iterator[Row]] = next(
        getattr(module, name) for module in modules if hasattr(module, name)
    )
    with torch.inference_mode():
        yield from section(sizes_for(device))


def environment() -> Mapping[str, object]:
    """Versions, the device and its driver."""
    import torch  # noqa: PLC0415

    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "–"
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        found["device"] = f"{torch.cuda.get_device_name()}, sm_{major}{minor}, CUDA {torch.version.cuda}"
    else:
        found["device"] = "cpu: kernels are interpreted, times mean nothing"
    return found


def is_ok(sections: Mapping[str, Mapping[str, Any]]) -> bool:
    """No section failed, and no row says that it is not ok."""
    rows = [row for result in sections.values() for row in result["rows"]]
    return not any(result.get("error") for result in sections.values()) and all(
        row.get("ok", True) for row in rows
    )


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """A table with every column that a row has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row.get(name, "")) for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
