"""Every option declared once (`option`), the specs made of them, and the server that is built from one.

Knows no engine, no client and no command line: what a verb shows, checks and completes follows from the specs.
"""
