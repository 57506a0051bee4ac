"""Prometheus metrics of a running process, read over HTTP."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, name: str, **labels: str) -> float:
        """The one sample with exactly these labels. Raises KeyError naming what there is."""
        key = (name, frozenset(labels.items()))
        if key not in self.samples:
            near = sorted(
                f"{found}{dict(found_labels)}" for found, found_labels in self.samples if found == name
            )
            raise KeyError(f"no sample {name}{labels}; there are {near}")
        return self.samples[key]

    def total(self, name: str, **labels: str) -> float:
        """Sum over all samples of that name which have these labels among theirs; 0 if there are none."""
        wanted = set(labels.items())
        return sum(
            value
            for (found, found_labels), value in self.samples.items()
            if found == name and wanted <= found_labels
        )

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


def scrape(address: str, timeout_s: float = 5.0) -> Metrics:
    """Reads host:port's /metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=timeout_s) as response:
        text = response.read().decode()
    return Metrics(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )
