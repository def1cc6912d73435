"""Errors against steps that were timed twice."""


def error(step_ns: float, before_ns: float, after_ns: float) -> float:
    low, high = sorted((before_ns, after_ns))
    if high <= 1.05 * low:
        return step_ns / ((low + high) / 2) - 1
    return min((step_ns / low - 1, step_ns / high - 1), key=abs)
