"""Numbers that ranks exchange: what a collective makes of numbers that are known on this rank.

Other ranks are taken to have the same ones. That is an assumption: it is stated where a program decides by such a
number, and what each rank had is written down, so that ranks that are run can be compared.
"""

import zlib
from collections.abc import Callable
from typing import Any

from etude.capture.dry.assumptions import state
from etude.capture.dry.communication import Communication
from etude.capture.dry.values import asking

KINDS = ("all_reduce", "broadcast", "all_gather")
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR")
SHOWN = 8
"""Numbers of a tensor that are written down one by one."""


class Exchanges:
    """Collectives whose numbers are known here, each by its group and its number among those of the group."""

    def __init__(self, torch: Any, reduction: Callable[[], str]) -> None:
        """`reduction`: what the call of Python reduces by, such as `SUM`; the operator below it does not say."""
        self._torch, self._reduction = torch, reduction
        self.rows: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        """Exchanges of each group, those of unknown numbers too."""

    def combined(self, call: Communication, known: list[Any]) -> list[Any] | None:
        """Numbers of the tensors that a call writes, or None where they are not known."""
        if call.kind not in KINDS:
            return None
        number = self.counts[call.group] = self.counts.get(call.group, 0) + 1
        if not known or any(real is None for real in known):
            return None
        found = self._combined(call, known)
        if found is not None:
            row = {"members": list(call.members), "number": number, "value": _shown(known), "where": "", "line": ""}
            self.rows.append(row)
        return found

    def _combined(self, call: Communication, known: list[Any]) -> list[Any] | None:
        if call.kind == "broadcast":
            return [real.clone() for real in known]
        size, reduction = len(call.members), call.reduction or self._reduction()
        if call.kind == "all_reduce":
            if reduction not in REDUCTIONS:
                return None
            return [_reduced(real, reduction, size, self._torch.bool) for real in known]
        if len(known) != 1:
            return None
        if len(call.writes) == size:
            return [known[0].clone() for _ in call.writes]
        whole = self._torch.cat([known[0].reshape(-1)] * size)
        return [whole.reshape(call.writes[0].shape)] if call.writes[0].numel() == whole.numel() else None

    def use(self, rows: set[int]) -> None:
        """A line of the program asks for numbers that came out of these exchanges."""
        where, line, _ = asking()
        for row in rows:
            if not self.rows[row]["where"]:
                self.rows[row] |= {"where": where, "line": line}
        if rows:
            state("numbers that the program decides by and ranks exchange are taken to be the same on every rank")


def _reduced(real: Any, reduction: str, size: int, boolean: Any) -> Any:
    """The result of `size` ranks that have the same numbers."""
    if real.dtype == boolean:
        return real.clone()
    return {"SUM": lambda: real * size, "PRODUCT": lambda: real**size}.get(reduction, real.clone)()


def _shown(known: list[Any]) -> str:
    """Numbers as a text by which ranks are compared."""
    found = []
    for real in known:
        numbers = real.reshape(-1).tolist()
        text = ", ".join(map(str, numbers[:SHOWN]))
        more = f", ... of {len(numbers)} (sum {zlib.crc32(str(numbers).encode()):08x})" if len(numbers) > SHOWN else ""
        found.append(f"[{text}{more}]")
    return " ".join(found)
