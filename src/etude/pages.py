"""Pages of memory that this process touched for the first time: the system makes each of them, and that takes time."""

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]


def page_faults() -> int:
    """How many so far, of all threads; 0 where the system does not say."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource is not None else 0
