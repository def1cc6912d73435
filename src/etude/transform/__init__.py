"""Jobs from jobs."""
