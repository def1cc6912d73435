"""Packets: runs of the packet simulator htsim, each with the flows and the paths that they took."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, table_rows
from etude.run.simulate.packets.alone import PacketFlow, PacketLinks, PacketTimes, run_flows
from etude.run.simulate.packets.state import PacketRules
from etude.store import compressed

COLUMNS: Final = ("run_id", "simulator", "protocol", "routing", "topology", "link_gbps", "fct_mean_us", "pfc_pauses")
FLOW_COLUMNS: Final = ("flow", "src", "dst", "bytes", "start_us", "path", "ack_path")
PAYLOAD_BYTES: Final = 4096
"""The source pads the last packet, and sends one more than needed where the bytes are a multiple of it."""
NOTICE_PS: Final = 50_000_000
RAISE_PS: Final = 55_000_000
HOSTS_OF_LEAF: Final = {"db4": 2}
"""Hosts of a switch, where they are not 8."""


class FabricRun(NamedTuple):
    row: CsvRow
    folder: Path


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    row, folder = item.value
    if row["protocol"] not in ("roce", "dcqcn_fix"):
        raise UsageError(f"senders of `{row['protocol']}` are not modelled")
    if row["routing"] != "ecmp_flow":
        raise UsageError(f"routing `{row['routing']}` is not modelled")
    path = folder / "flows" / f"{row['run_id']}.csv.gz"
    if not path.is_file():
        raise UsageError("the flows of the run are missing", where=str(path))
    done = simulate_run(row, _flows(path))
    fct_us = done.finished_ps / 1e6
    names = ("fct_mean_us", "fct_p99_us", "fct_max_us", "pfc_pauses")
    found = (fct_us.mean(), np.sort(fct_us)[int(np.ceil(0.99 * len(fct_us))) - 1], fct_us.max())
    predicted = dict(zip(names, (*map(float, found), float(done.ports["pauses"].sum())), strict=True))
    measured = {name: float(row[name]) for name in names}
    if not measured["pfc_pauses"]:  # errors are relative
        del measured["pfc_pauses"], predicted["pfc_pauses"]
    return PredictedRow(measured=measured, predicted=predicted, assumed=["flows and ACKs took the paths of the run"])


def _flows(path: Path) -> list[CsvRow]:
    try:
        reader = csv.DictReader(io.StringIO(b"".join(compressed.pieces(path)).decode("utf-8-sig")), restval="")
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"cannot be read: {problem}", where=str(path)) from None
    lacks = [name for name in FLOW_COLUMNS if name not in (reader.fieldnames or ())]
    if lacks or not rows:
        raise FormatError(f"has no column `{lacks[0]}`" if lacks else "has no flows", where=str(path))
    return rows


def simulate_run(row: CsvRow, flows: list[CsvRow]) -> PacketTimes:
    """The run on the links that its paths name."""
    number: dict[str, int] = {}
    size = row["topology"]
    hosts = int(size[1:]) // 2 if size[:1] == "k" and size[1:].isdigit() else HOSTS_OF_LEAF.get(size, 8)

    def way(src: int, dst: int, between: str) -> tuple[int, ...]:
        names = [f"H{src}->LS{src // hosts}", *between.split(), f"LS{dst // hosts}->H{dst}"]
        return tuple(number.setdefault(name, len(number)) for name in names)

    made = []
    for flow in flows:
        src, dst, size_bytes = int(flow["src"]), int(flow["dst"]), int(flow["bytes"])
        if not flow["path"] and src // hosts != dst // hosts:
            raise FormatError(f"flow {flow['flow']} has no path", where=row["run_id"])
        made.append(
            PacketFlow(
                path=way(src, dst, flow["path"]),
                back=way(dst, src, flow["ack_path"]),
                size_bytes=size_bytes,
                begin_ps=round(float(flow["start_us"]) * 1e6),
                more_packets=int(size_bytes % PAYLOAD_BYTES == 0),
            )
        )
    links = len(number)
    wires = PacketLinks(
        bytes_per_s=np.full(links, float(row["link_gbps"]) * 1e9 / 8),
        wire_ps=np.full(links, round(float(row["hop_latency_us"]) * 1e6)),
        switch_ps=np.full(links, round(float(row["switch_latency_us"]) * 1e6)),
        to_switch=np.array([not name.rpartition(">")[2].startswith("H") for name in number], np.int64),
        names=tuple(number),
    )
    return run_flows(wires, made, _rules(row))


def _rules(row: CsvRow) -> PacketRules:
    reacts = row["protocol"] == "dcqcn_fix"
    return PacketRules(
        payload_bytes=PAYLOAD_BYTES,
        header_bytes=int(row["header_bytes"]),
        answer_bytes=int(row["header_bytes"]),
        pads=True,
        answers=True,
        pause_bytes=int(row["pfc_high_bytes"]),
        resume_bytes=int(row["pfc_low_bytes"]),
        mark_bytes=int(row["ecn_low_bytes"]) if reacts else 0,
        notice_ps=NOTICE_PS if reacts else 0,
        raise_ps=RAISE_PS if reacts else 0,
    )


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    return [Item(item.label, FabricRun(item.value, path.parent)) for item in table_rows(path, asked)]


KIND: Final = ScoreKind(
    name="packets",
    doc="CSV of runs of htsim: run_id, simulator, protocol, ..., and a folder flows with RUN.csv.gz",
    holds=lambda source: source.has(*COLUMNS),
    rows=_rows,
    predict=predict,
)
