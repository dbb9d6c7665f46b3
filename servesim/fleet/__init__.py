"""Several engines in one virtual time: replicas behind a router, prefill and decode apart with a link between them.

Knows nothing of files, hardware or how results are printed; a fleet of one replica is that engine, byte for byte.
"""
