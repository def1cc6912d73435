"""A training step: fragments placed one after another, gradients and weights exchanged, memory counted."""
