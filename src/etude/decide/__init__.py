"""Which design is better: studies and searches."""
