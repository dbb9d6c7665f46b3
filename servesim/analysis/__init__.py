"""Questions asked over many runs. Knows neither terminals nor files."""
