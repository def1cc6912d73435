"""Which node gets a seat of some devices."""
