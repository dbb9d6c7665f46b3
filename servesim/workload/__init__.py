"""What is asked of a server and when: request columns, lengths, arrivals, sessions, traces.

Knows nothing of engines or servers: whoever drives a workload tells it what has finished.
"""
