"""What a step costs and what fits in memory: step cost models and the memory plan."""
