"""OpenVINO GenAI for the load tool: an adapter process of a `process:` target. Imports nothing of pagemesh.

    python openvino_adapter.py MODEL '{"max_num_batched_tokens": 512}' '{"INFERENCE_NUM_THREADS": 2}'

Runs in OpenVINO's own environment. The pipeline is in this process, with no server and no network around it,
which flatters it.
"""

import json
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import openvino_genai  # type: ignore[import-not-found]  # of another environment

Request = Mapping[str, Any]
Running = dict[int, tuple[int, Any, list[int]]]
"""Id for the tool, handle, tokens of each step; by the pipeline's own number."""


def main() -> None:
    pipeline = load(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
    requests: queue.Queue[Request | None] = queue.Queue()
    threading.Thread(target=read, args=(requests,), daemon=True).start()
    say({"ready": True})
    running: Running = {}
    number = 0
    while True:
        for request in waiting(requests, may_block=not running):
            if request is None:
                return
            handle = pipeline.add_request(number, request["prompt"], options(request))
            running[number] = (request["id"], handle, [])
            number += 1
        pipeline.step()
        tell(running)


def load(model: str, scheduler: Mapping[str, Any], properties: Mapping[str, Any]) -> Any:
    config = openvino_genai.SchedulerConfig()
    for name, value in scheduler.items():
        setattr(config, name, value)
    return openvino_genai.ContinuousBatchingPipeline(model, config, "CPU", properties)


def read(requests: "queue.Queue[Request | None]") -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)


def waiting(requests: "queue.Queue[Request | None]", may_block: bool) -> Iterator[Request | None]:
    """What arrived meanwhile; waits for a first one where nothing runs."""
    if may_block:
        yield requests.get()
    while True:
        try:
            yield requests.get_nowait()
        except queue.Empty:
            return


def options(request: Request) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request["max_tokens"]
    config.ignore_eos = request["ignore_eos"]
    config.do_sample = request["temperature"] > 0
    config.apply_chat_template = False
    return config


def tell(running: Running) -> None:
    """One line for a step's tokens, one for each end."""
    tokens, over = [], []
    for number, (request_id, handle, ids) in running.items():
        fresh = 0
        while handle.can_read():
            fresh += sum(len(output.generated_ids) for output in handle.read().values())
        if fresh:
            ids.append(fresh)
            tokens.append([request_id, fresh])
        if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
            over.append(number)
    if tokens:
        say({"tokens": tokens})
    for number in over:
        request_id, _, ids = running.pop(number)
        say({"end": request_id, "output_tokens": sum(ids)})


def say(message: Mapping[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
