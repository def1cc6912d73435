"""Limits of a space that are expressions over its rows: `limits: {slow: latency <= 4}`."""

from collections.abc import Mapping

from etude.base.errors import UsageError
from etude.decide.search.found import Row
from etude.decide.search.given import Given
from etude.decide.search.solver import Answer
from etude.decide.study.expressions import evaluated

FAILED = "failed"


class LimitsOfRows:
    """A row of a study becomes the row of a candidate, or why it has none."""

    def __init__(self, given: Given) -> None:
        self.where, self.limits = given.where, given.keys.get("limits") or {}
        self.first_error = ""
        if not isinstance(self.limits, Mapping):
            raise UsageError(f"limits: {self.limits!r}", where=self.where, hint="limits: {slow: latency <= 4}")

    def answer(self, row: Row) -> Answer:
        if error := row.pop("error"):
            self.first_error = self.first_error or error
            return FAILED
        broken = (name for name, text in self.limits.items() if not self._holds(str(name), str(text), row))
        return next(broken, "") or row

    def _holds(self, name: str, text: str, row: Row) -> bool:
        return bool(evaluated(text, row, f"{self.where}: limits: {name}"))

    def nothing(self, otherwise: str = "the limits exclude all candidates") -> UsageError:
        """The error of a space none of whose candidates has a row."""
        return UsageError(f"no candidate is left; the first: {self.first_error or otherwise}", where=self.where)
