from collections.abc import Sequence


def spread(free: Sequence[int], devices: int) -> int:
    """The emptiest node, the first of several: a fault hits few replicas."""
    return max(range(len(free)), key=lambda k: free[k])
