"""Two git versions measured alike: `make bench-versions BASELINE=v1 TARGET=.`, or from Python

from bench.versions.config import BenchmarkConfig
from bench.versions.rounds import measure_versions
from bench.versions.comparison import compare

rounds = measure_versions(BenchmarkConfig("v1", ".", concurrency=16, duration=20))
for row in compare(rounds):
    print(row.metric, row.interval.ratio, row.verdict)
"""
