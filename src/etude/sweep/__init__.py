"""Sweep: what composes the other rooms. A prediction is a generated job, simulated; a search is many of them."""
