"""The command line: a parser and a runner that every verb shares, and a file a verb. Knows no arithmetic."""
