"""Several engines in one virtual time: replicas behind a router, or disaggregated over a link.

Knows nothing of files, hardware or how results are printed; a fleet of one replica is that engine, byte for byte.
"""
