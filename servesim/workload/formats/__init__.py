"""Trace formats of other people's files, one small module a family, each one entry of `trace.TRACE_FORMATS`.

A format says how a file's head gives it away and what each of its lines means, in the field names of servesim's own
JSONL. It knows nothing of what rows say together, of request columns or of the run to come.
"""
