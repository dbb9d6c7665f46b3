"""The command line, one module a verb: parses, calls, prints. Knows no arithmetic."""
