"""What travels between a client and a server, as bytes and back: HTTP bodies, event streams, metric pages.

Nothing in this room sees a socket, a clock or a file: bytes in, facts out. Splitting a stream into events (framing,
event boundaries) is kept apart from reading an event's JSON, so that a client can stamp now and think later.
"""
