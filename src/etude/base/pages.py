"""Pages of memory that this process touched for the first time: the system makes each of them, and that takes time."""

from importlib.util import find_spec

_KNOWN = find_spec("resource") is not None
"""Not on every system."""


def page_faults() -> int:
    """How many so far, of all threads; 0 where the system does not say."""
    if not _KNOWN:
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
