"""One simulated engine, told the time: block pool, scheduler, step loop and the laws a run must obey.

Knows nothing of hardware (a cost model gives seconds), of files, or of how results are printed.
"""
