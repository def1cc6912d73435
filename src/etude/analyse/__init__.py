"""Where the time goes: pure functions of a Run that return tables. A shelf: each file is one analysis, and what it
shows others is in its `__all__`."""
