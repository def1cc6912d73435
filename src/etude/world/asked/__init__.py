"""What is asked of a world: `etude world run`."""
