"""The answer where ASTRA-sim has none."""

from etude.base.errors import AnswerNo


class AstraAbort(AnswerNo):
    """ASTRA-sim crashes, exits or throws on this input."""
