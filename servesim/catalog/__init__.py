"""Facts with sources: hardware, models, and what each server's defaults and names are.

Knows datasheets and model cards; knows nothing of a run, and computes no more than what a fact implies.
"""
