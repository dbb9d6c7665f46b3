"""Two runs side by side: differences, their noise, verdicts and gates."""
