"""What was measured, on disk after every run: an interrupted comparison goes on where it stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.compare.measurement import Measurement, Place


class Store:
    """Measurements by key, under the plan that they belong to; another plan starts anew."""

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self._path = path
        self._plan = dict(plan)
        self._measurements: dict[Place, Measurement] = {}
        self._read()

    @property
    def measurements(self) -> list[Measurement]:
        return list(self._measurements.values())

    def has(self, place: Place) -> bool:
        return place in self._measurements

    def add(self, measurement: Measurement) -> None:
        self._measurements[measurement.place] = measurement
        self._save()

    def _save(self) -> None:
        rows = [measurement.as_json() for measurement in self._measurements.values()]
        text = json.dumps({"plan": self._plan, "measurements": rows}, indent=1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_text(text + "\n")
        draft.rename(self._path)

    def _read(self) -> None:
        if not self._path.exists():
            return
        saved = json.loads(self._path.read_text())
        if saved["plan"] == json.loads(json.dumps(self._plan)):
            rows = (Measurement.of_json(row) for row in saved["measurements"])
            self._measurements = {row.place: row for row in rows}
