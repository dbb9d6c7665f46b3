"""The figures of a device from measurements of real runs, and the evidence for the cost models."""
