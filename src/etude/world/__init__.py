"""What lasts longer than a step: streams of requests, days of jobs."""
