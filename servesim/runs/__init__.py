"""The hinge: what happened to every request and in every step, and the file that keeps it."""
