"""Checks that a host trace and a device trace are of one run: small ids match across runs, names and processes do
not."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.base.errors import MismatchError
from etude.capture.link.device import DeviceTrace
from etude.capture.link.host import HostTrace
from etude.kernels.arrays import I64, distinct_values

DISAGREEMENT: Final = 0.05
"""Fraction of operators with different names above which a pair is from two runs."""


def check_pair(host: HostTrace, rows: I64, device: DeviceTrace, events: I64) -> None:
    """Raises MismatchError unless the operators `rows` have the names of the `events` found for them."""
    where = f"{host.json.path} and {device.json.path}"
    hint = "give the two files that one run of the profiler wrote"
    code = {name: i for i, name in enumerate(device.names)}
    same = np.array([code.get(name, -2) for name in host.names], np.int64)[host.name[rows]] == device.name[events]
    different = np.flatnonzero(~same)
    if len(rows) and len(different) <= DISAGREEMENT * len(rows):
        return
    if len(rows):
        one, other = host.names[host.name[rows[different[0]]]], device.names[device.name[events[different[0]]]]
        raise MismatchError(
            f"the files are of two different runs: {len(different):,} of {len(rows):,} operators have a different "
            "name there, "
            f"`{one}` is `{other}`",
            where=where,
            hint=hint,
        )
    pid, pids = host.members.get("pid"), distinct_values(device.pid[device.is_category("cpu_op")]).tolist()
    if pids and pid not in pids:
        raise MismatchError(
            f"the files are of two different runs: process {pid} on the host, {device.identity(pids[0])} on the device",
            where=where,
            hint=hint,
        )
    raise MismatchError(
        "no event of the device trace carries the record-function id of an operator",
        where=where,
        hint="record both in one run, with the observer on; or link the device trace alone",
    )
