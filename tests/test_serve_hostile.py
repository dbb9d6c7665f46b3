"""A small assault of `tests.hostile_serve` on every run; the large one is `python3 -m tests.hostile_serve`."""

from __future__ import annotations

import unittest

from tests.hostile_serve import KINDS, assault
from tests.serve_case import LiveServer, eventually


class Hostile(unittest.TestCase):
    def test_hostile_clients_leave_it_serving_with_every_block_free(self) -> None:
        with LiveServer({"prefix_caching": True, "async_scheduling": True}, speed=5.0) as server:
            counts = assault(server.port, 400, seed=3)
            self.assertEqual({*counts}, {kind.__name__ for kind in KINDS})
            clock = server.app.clock
            eventually(self, lambda: clock.engine.pool.free, clock.config.num_blocks)
            eventually(self, lambda: (clock.idle, len(server.app.answers)), (True, 0))
            self.assertEqual(clock.workload.free_rows, len(clock._at))
            answer = server.post("/v1/completions", {"prompt": "still there?", "max_tokens": 3})
            self.assertEqual(answer["usage"]["completion_tokens"], 3)


if __name__ == "__main__":
    unittest.main()
