"""OpenVINO's logits on the CPU after forced tokens, in its own environment. Imports nothing of pagemesh.

    python openvino_logits.py MODEL.gguf SCRATCH THREADS < windows.jsonl

Each line has prompt_ids and answer_ids; line i leaves SCRATCH/i.npy, [answer ids, vocabulary]. The model is
the one that GenAI makes of the GGUF file and saves; the plugin's settings are its defaults (8-bit KV, 8-bit
dynamic activations).
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]  # of another environment
import openvino_genai  # type: ignore[import-not-found]


def main() -> None:
    gguf, scratch, num_threads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    copy = scratch / "model.gguf"
    copy.symlink_to(gguf.resolve())
    openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    settings = {"INFERENCE_NUM_THREADS": num_threads}
    compiled = openvino.Core().compile_model(str(scratch / "openvino_model.xml"), "CPU", settings)
    request = compiled.create_infer_request()
    for number, line in enumerate(sys.stdin):
        window = json.loads(line)
        np.save(scratch / f"{number}.npy", forced(request, window["prompt_ids"], window["answer_ids"]))


def forced(request: Any, prompt_ids: list[int], answer_ids: list[int]) -> Any:
    """The prompt in one pass, then the answer's ids one by one, as it serves."""
    request.reset_state()
    logits = [infer(request, prompt_ids, 0)]
    for index, token_id in enumerate(answer_ids[:-1]):
        logits.append(infer(request, [token_id], len(prompt_ids) + index))
    return np.stack(logits)


def infer(request: Any, ids: list[int], start: int) -> Any:
    """The last position's logits."""
    inputs = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, start + len(ids)), np.int64),
        "position_ids": np.arange(start, start + len(ids), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return request.infer(inputs)["logits"][0, -1].astype(np.float32)


if __name__ == "__main__":
    main()
