"""A job in time: simulated by our engine or in ASTRA mode, replayed on devices; and a node qualified."""
