"""How fast training runs under a cap of the power."""
