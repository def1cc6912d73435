"""one_sided: puts into windows of the receivers, announced by a small exchange of counts and offsets."""

from __future__ import annotations

import numpy as np

from etude.make.transform.edits.definition import Definition, Here, Parameter, size
from etude.make.transform.rewrite.rewriting import BEFORE
from etude.model.schema import UNKNOWN, Kind, Why


def rewrite(here: Here, control: int) -> None:
    """Sends `control` bytes to every member before each call; the payload is unchanged."""
    rows = here.rows[here.trace.kind[here.rows] == Kind.COLL]
    if not control or not len(rows):
        return
    told = here.members(rows) * control
    columns = {"in_bytes": told, "out_bytes": np.where(here.trace.out_bytes[rows] == UNKNOWN, UNKNOWN, told)}
    counts = here.made.copy(rows, BEFORE, duration_ns=UNKNOWN, **columns)
    here.made.enter(rows, counts, order=True)
    here.made.wait(rows, counts, Why.PROGRAM, data=False)


EDIT = Definition(
    doc="before each call its members exchange `control` bytes with every other: counts and offsets of its puts",
    cannot="that puts need no copies (`drop around=all_to_all` removes these); memory of the windows",
    parameters={"control": Parameter(read=size, doc="bytes of counts and offsets for each member: 8B")},
    selects="collective",
    rewrite=rewrite,
)
