"""One simulated engine on a virtual clock: scheduler, block pool, arrivals, step loop and the laws a run must obey.

Read `engine` first (the clock), then `scheduler` (who gets what in a step), then `blocks` (the KV cache). The rest is
named for what it is. The room knows nothing of hardware (a cost model gives seconds), of files, or of how results are
printed.
"""
