"""A cache bounded by bytes: the least recently used entry goes first. One owner, no lock."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Keeps entries while the sum of their costs is within `max_cost`."""

    def __init__(self, max_cost: int) -> None:
        self._max_cost = max_cost
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.cost = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, which thereby becomes the most recently used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, cost: int) -> None:
        """Keeps a value; one that alone is over the bound is not kept."""
        previous = self._entries.pop(key, None)
        if previous is not None:
            self.cost -= previous[1]
        if cost > self._max_cost:
            return
        self._entries[key] = (value, cost)
        self.cost += cost
        while self.cost > self._max_cost:
            _, (_, freed) = self._entries.popitem(last=False)
            self.cost -= freed
