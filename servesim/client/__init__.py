"""The load generator: it drives a workload against a real server and stamps what comes back.

Opens connections, paces requests, reads every socket in one loop, and watches itself while it does. It knows no metric:
what it makes is a `Run` of source "measured", which the summary cannot tell from a simulated one.
"""
