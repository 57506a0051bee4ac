"""What is compared, and how long. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.load.spec import ClosedLoop, LoadSpec

WORKING_TREE = "."
"""The version that is this checkout as it lies there, changes and all."""


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """Two versions under the same closed loop."""

    baseline_version: str
    """Anything that git can check out, or "."."""
    target_version: str
    concurrency: int = 16
    """Streams."""
    duration: float = 20.0
    """Seconds that are measured, per version and round."""
    num_rounds: int = 5
    """Each runs both versions, one after the other, in alternating order, on meshes started anew."""
    max_tokens: int = 64
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of both meshes, PAGEMESH_ENGINE_DTYPE and the like; otherwise each has its own defaults."""
    flags: tuple[str, ...] = ()
    """Of `pagemesh up`, for both."""

    def load(self, target: str, label: str, round_index: int) -> LoadSpec:
        """What both versions get in a round: the same prompts, other ones than in the last."""
        return LoadSpec(
            target=target,
            load=ClosedLoop(self.concurrency),
            duration_s=self.duration,
            num_warmup=self.concurrency,
            max_tokens=self.max_tokens,
            seed=round_index,
            label=label,
        )
