"""What a run comes to: the one place where a metric is computed. Knows no file and no report."""
