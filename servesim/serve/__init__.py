"""The simulated engine behind an OpenAI-compatible HTTP API on the wall clock: a server without a GPU.

It does not know what a prompt means: its tokenizer and its answers are pretended, its times and its memory are not.
"""
