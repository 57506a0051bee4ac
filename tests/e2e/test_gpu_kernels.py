"""Kernels compile for GPUs that are not here, ptxas included, within a GPU's registers and shared memory."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_attention_of_a_grouped_model_compiles_for_sm_80_and_sm_90(tmp_path: Path) -> None:
    report = tmp_path / "gpu.md"
    report.write_text("before\n<!-- kernels: begin -->\nold\n<!-- kernels: end -->\nafter\n")
    command = [sys.executable, "-m", "bench.gpu_kernels", "--only=bf16 head 128, 28/4", f"--write={report}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    text = report.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    pattern = r"\| (attend|decode part|decode join), .* \| (sm_\d+) \| (\d+) \| (\d+) \| [\d.]+ \| (.+) \|"
    rows = re.findall(pattern, text)
    assert len(rows) == 6
    assert {(name, arch) for name, arch, *_, wgmma in rows if wgmma == "yes"} == {("attend", "sm_90")}
