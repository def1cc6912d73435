"""The answer where ASTRA-sim has none."""

from etude.errors import AnswerNo


class AstraAbort(AnswerNo):  # noqa: N818 - an answer, not a fault
    """ASTRA-sim crashes, exits or throws on this input."""
