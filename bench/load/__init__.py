"""A load generator for pagemesh gateways, for OpenAI-style servers, and for anything with a small adapter.

On the command line (`pagemesh bench --help`, or `python -m bench.load`):

    pagemesh bench --target grpc://127.0.0.1:7600 --streams 1,16 --requests 200 --json out.json
    pagemesh bench --target http://127.0.0.1:8101 --model smollm2 --rate 4 --duration 60 --html out.html
    pagemesh bench --target 'process:/venv/bin/python adapter.py' --streams 16

From Python:

    from bench.load.run import measure
    from bench.load.spec import ClosedLoop, Inputs, LoadSpec

    run = measure(LoadSpec(target="grpc://127.0.0.1:7600", load=ClosedLoop(16), num_requests=200))
    run.summary.output_tokens_per_s, run.summary.ttft_ms.mean, run.requests[0].ttft_s

`measure(spec, driver=...)` drives any object that is a `bench.load.drivers.driver.Driver`. How an adapter
process talks is in `bench/load/drivers/process_driver.py`. Definitions are in docs/benchmark.md.
"""
