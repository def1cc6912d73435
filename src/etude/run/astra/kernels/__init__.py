"""Kernels: they see arrays only, and Numba infers their types."""
