"""Where the time goes: pure functions of a Run that return tables. Each file is one analysis; its public names are in
its `__all__`."""
