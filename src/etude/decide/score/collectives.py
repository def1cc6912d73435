"""Collectives and messages: CSV tables of NCCL's times, and the text of nccl-tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost.collectives import collective_time_ns, p2p_time_ns
from etude.cost.estimates import EstimateCase, estimate_of
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, check_system, table_rows
from etude.decide.score.nccl_tests import is_nccl_tests, read_nccl_tests
from etude.decide.score.source import ScoreFile
from etude.machine import System, open_system
from etude.model.schema import Collective
from etude.steps.measured.gpus import words

NCCL: Final = ("gpu", "gpus", "gpus_per_node", "collective", "size_bytes", "time_us")
VIDUR: Final = ("system", "collective", "workers", "devices_per_node", "bytes", "median_us")
SYSTEMS: Final = {"V100": "dgx-2", "A100": "dgx-a100", "H100": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200"}
VIDUR_SYSTEMS: Final = {"a100_dgx": "dgx-a100", "h100_dgx": "dgx-h100"}
"""Those of its machines that the catalogue has; pairs of GPUs joined by a bridge are not among them."""
FIGURE: Final = "time of a collective"
LARGE: Final = 1_000_000
"""Bytes of a call from which on the links decide."""
SEND_RECV: Final = "send_recv"
GATHERING: Final = (Collective.ALL_GATHER, Collective.GATHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCall:
    """A measured call; `size_bytes` as nccl-tests count them."""

    collective: str
    size_bytes: int
    time_us: float
    gpus: int
    per_node: int
    system: str
    """Name in the catalogue; empty: it has none."""
    named: str
    """The GPU or machine as the file names it."""


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    call = item.value if isinstance(item.value, MeasuredCall) else call_of(item.value)
    name = asked.system or call.system
    if not name:
        raise UsageError(f"there is no system for `{call.named}`")
    if not call.collective:
        raise UsageError("the text does not say which collective it is", hint="keep the line that names the test")
    if call.gpus < 2 or call.gpus % call.per_node:
        raise UsageError(f"{call.gpus} GPUs, {call.per_node} on a node")
    assumed = [] if asked.system else [f"system {name} for `{call.named}`"]
    if call.gpus > call.per_node:
        assumed.append("the network between nodes is that of the system")
    assumed.append("NCCL's own choice of algorithm and protocol")
    part = open_part(name, call.gpus, call.per_node)
    predicted = {"time_s": call_time_ns(part, call) / 1e9}
    found = estimate_of(predicted["time_s"], call_case(call, part))
    measured = {"time_s": call.time_us / 1e6}
    return PredictedRow(measured=measured, predicted=predicted, assumed=assumed, estimates={"time_s": found})


def call_case(call: MeasuredCall, part: System) -> EstimateCase:
    """What the errors of a call depend on. Of groups over several nodes nothing is known: no measured row says what is
    between its nodes."""
    if call.gpus > call.per_node:
        kind = "between nodes"
    else:
        kind = "messages below 1 MB" if call.size_bytes < LARGE else "messages of 1 MB and more"
    return EstimateCase(figure=FIGURE, kind=kind, device=part.device.name)


def call_of(row: CsvRow) -> MeasuredCall:
    """A row of either table."""
    if "median_us" in row:
        return MeasuredCall(
            collective=row["collective"],
            size_bytes=int(row["bytes"]),
            time_us=float(row["median_us"]),
            gpus=int(row["workers"]),
            per_node=int(row["devices_per_node"]),
            system=VIDUR_SYSTEMS.get(row["system"], ""),
            named=row["system"],
        )
    return MeasuredCall(
        collective=row["collective"],
        size_bytes=int(row["size_bytes"]),
        time_us=float(row["time_us"]),
        gpus=int(row["gpus"]),
        per_node=int(row["gpus_per_node"]),
        system=SYSTEMS.get(row["gpu"].partition("-")[0], ""),
        named=row["gpu"],
    )


def on_system(system: System, gpus: int, per_node: int) -> System:
    """As much of the system as a row used."""
    inner = replace(system.levels[0], size=max(per_node, system.levels[0].size))
    outer = replace(system.levels[1], size=max(gpus // per_node, 1))
    return system.replace(levels=(inner, outer), placement=())


@cache
def open_part(name: str, gpus: int, per_node: int) -> System:
    system = open_system(name)
    if len(system.levels) < 2:
        return system
    return on_system(system, gpus, per_node)


def call_time_ns(part: System, call: MeasuredCall) -> float:
    stride = part.levels[0].size
    ranks = [node * stride + k for node in range(call.gpus // call.per_node) for k in range(call.per_node)]
    sizes = np.array([call.size_bytes])
    if call.collective == SEND_RECV:
        return float(p2p_time_ns(part, ranks[0], ranks[1], sizes)[0])
    kind = Collective.parse(call.collective)
    if kind in GATHERING:  # nccl-tests count what a rank has in the end, Etude what it puts in
        sizes = sizes // call.gpus
    return float(collective_time_ns(part, kind, sizes, ranks)[0])


def _holds(source: ScoreFile) -> bool:
    return source.has(*NCCL) or source.has(*VIDUR) or is_nccl_tests(source.head)


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    with path.open("rb") as file:
        if not is_nccl_tests(file.read(1 << 16)):
            return table_rows(path, asked)
    lines = read_nccl_tests(path)
    known = next((SYSTEMS[name] for name in SYSTEMS if name.lower() in words(lines[0].gpu)), "")
    return [
        Item(
            number,
            MeasuredCall(
                collective=one.collective,
                size_bytes=one.size_bytes,
                time_us=one.time_us,
                gpus=one.gpus,
                per_node=one.per_node,
                system=known,
                named=one.gpu,
            ),
        )
        for number, one in enumerate(lines, 1)
    ]


KIND: Final = ScoreKind(
    name="collectives",
    doc="output of nccl-tests; CSV of collectives: gpu, gpus, gpus_per_node, collective, size_bytes, time_us, ...",
    holds=_holds,
    rows=_rows,
    predict=predict,
    reads=frozenset({"system"}),
    check=check_system,
)
