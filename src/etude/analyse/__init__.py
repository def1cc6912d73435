"""Where the time goes: pure functions of a Run that return tables."""
