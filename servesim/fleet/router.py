"""Which replica gets a request: one small class a router."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from servesim.workload.seeds import random_stream

if TYPE_CHECKING:
    from servesim.fleet.replica import Replica
    from servesim.workload.requests import Requests


class Router:
    """Chooses a replica for each request, in the order of arrival.

    `blind` routers look at nothing but the request, so that replicas need not be brought to the same time;
    `looks_inside` ones read the engines' state, which must be that of the moment.
    """

    about: ClassVar[str]
    blind: ClassVar[bool] = False
    looks_inside: ClassVar[bool] = False

    def __init__(self, replicas: list[Replica], requests: Requests, seed: int) -> None:
        self.replicas = replicas
        self.requests = requests

    def choose(self, index: int) -> Replica:
        """Return the replica that request `index` goes to."""
        raise NotImplementedError


class RoundRobin(Router):
    about = "one after the other"
    blind = True

    def __init__(self, replicas: list[Replica], requests: Requests, seed: int) -> None:
        super().__init__(replicas, requests, seed)
        self._next = 0

    def choose(self, index: int) -> Replica:
        replica = self.replicas[self._next]
        self._next = (self._next + 1) % len(self.replicas)
        return replica


class Random(Router):
    about = "any one, equally likely"
    blind = True

    def __init__(self, replicas: list[Replica], requests: Requests, seed: int) -> None:
        super().__init__(replicas, requests, seed)
        self._stream = random_stream(seed, "router")

    def choose(self, index: int) -> Replica:
        return self.replicas[int(self._stream.random() * len(self.replicas))]


class LeastLoaded(Router):
    """Keeps a heap of loads, into which every change is put; an entry that is no longer true is passed over."""

    about = "the fewest requests in flight; of equals, the one that has waited longest for a request"

    def __init__(self, replicas: list[Replica], requests: Requests, seed: int) -> None:
        super().__init__(replicas, requests, seed)
        self._heap: list[tuple[int, int, int, Replica]] = []
        self._known: list[Replica] = []

    def choose(self, index: int) -> Replica:
        if self._known != self.replicas or len(self._heap) > 16 * len(self.replicas):
            self._begin_anew()
        heap = self._heap
        while True:
            in_flight, last_sent, _, replica = heap[0]
            if in_flight == replica.in_flight and last_sent == replica.last_sent:
                return replica
            heappop(heap)

    def changed(self, replica: Replica) -> None:
        """Hear that the load of one of the replicas is another one."""
        heappush(self._heap, (replica.in_flight, replica.last_sent, replica.number, replica))

    def _begin_anew(self) -> None:
        for replica in self._known:
            replica.when_changed = None
        self._known = self.replicas[:]
        self._heap.clear()
        for replica in self._known:
            replica.when_changed = self.changed
            self.changed(replica)


class LeastKv(Router):
    about = "the smallest part of its KV blocks in use, then the fewest requests in flight"
    looks_inside = True

    def choose(self, index: int) -> Replica:
        return min(self.replicas, key=lambda replica: (replica.kv_fraction(), *_load(replica)))


class Prefix(Router):
    about = "the one that was sent most of the same content before, else the least loaded"

    def __init__(self, replicas: list[Replica], requests: Requests, seed: int) -> None:
        super().__init__(replicas, requests, seed)
        self._replica_of: dict[int, Replica] = {}  # by stream

    def choose(self, index: int) -> Replica:
        content = () if self.requests.content is None else self.requests.content[index]
        for stream, _ in reversed(content):
            if stream in self._replica_of and self._replica_of[stream].accepts:
                chosen = self._replica_of[stream]
                break
        else:
            chosen = min(self.replicas, key=_load)
        for stream, _ in content:
            self._replica_of.setdefault(stream, chosen)
        return chosen


def _load(replica: Replica) -> tuple[int, int]:
    return replica.in_flight, replica.last_sent


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "least-kv": LeastKv,
    "prefix": Prefix,
    "random": Random,
}
