"""Trace files: recognised by content, read as a stream into request columns; a file a format."""
