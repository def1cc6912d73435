"""Assumptions that a rank of a dry run states itself: the process runs one rank, and its record has them."""

STATED: set[str] = set()


def state(assumption: str) -> None:
    STATED.add(assumption)
