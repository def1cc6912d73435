"""Where the time goes: pure functions of a Job and a Timing that return tables."""
