"""Pure functions from plans, runs and summaries to text, JSON, CSV, Markdown, SVG, HTML and trace events.

Knows how a result is shown; opens no file, reads no clock, and computes no metric of a run.
"""
