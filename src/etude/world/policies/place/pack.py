from collections.abc import Sequence


def pack(free: Sequence[int], devices: int) -> int:
    """The fullest node, the first of several: whole nodes stay free."""
    return min(range(len(free)), key=lambda k: free[k])
