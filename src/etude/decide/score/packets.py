"""Packets: runs of the packet simulator htsim, each with the flows and the paths that they took."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, table_rows
from etude.run.simulate.packets.alone import PacketFlow, PacketLinks, PacketTimes, run_flows
from etude.run.simulate.packets.ends import PACE
from etude.run.simulate.packets.state import (
    DCTCP,
    EQDS,
    FIXED,
    FLOWLET,
    LINE,
    NDP,
    NSCC,
    RCCC,
    ROTATE,
    SPRAY,
    TURNS,
    PacketRules,
)
from etude.store import compressed

COLUMNS: Final = ("run_id", "simulator", "protocol", "routing", "topology", "link_gbps", "fct_mean_us", "pfc_pauses")
FLOW_COLUMNS: Final = ("flow", "src", "dst", "bytes", "start_us", "path", "ack_path")
PAYLOAD_BYTES: Final = 4096
"""The source pads the last packet, and sends one more than needed where the bytes are a multiple of it."""
NOTICE_PS: Final = 50_000_000
RAISE_PS: Final = 55_000_000
SENDERS: Final = {
    "roce": LINE,
    "dcqcn_fix": LINE,
    "uec_nscc": NSCC,
    "uec_dctcp": DCTCP,
    "uec_rccc": RCCC,
    "ndp": NDP,
    "ndp_csg": NDP,
    "eqds": EQDS,
}
ROUTINGS: Final = {
    "ecmp_flow": FIXED,
    "spray": SPRAY,
    "spray_perm": TURNS,
    "spray_rr": ROTATE,
    "adaptive": FLOWLET,
}
SEEDS: Final = 5
"""Runs of a fabric on which packets choose their ways: figures are means over them."""
EARLY_PACKETS: Final = 64
"""Packets that a receiver of RoCE holds back where packets take turns."""
RETRY_PS: Final = 15_000_000
NDP_RETRY_PS: Final = 50_000_000_000


class LeafFabric(NamedTuple):
    """Hosts of a leaf, leaves of a pod (0: all are one), upper switches of a pod, and cores above them."""

    hosts: int
    leaves: int
    uppers: int
    cores: int

    def ways(self, src: int, dst: int) -> tuple[tuple[str, ...], ...]:
        """The links between the leaves of two hosts, on each shortest way."""
        a, b = src // self.hosts, dst // self.hosts
        if a == b:
            return ((),)
        pods = (a // self.leaves, b // self.leaves) if self.leaves else (0, 0)
        found: list[tuple[str, ...]] = []
        for upper in range(self.uppers):
            up, down = (f"US{pod * self.uppers + upper}" for pod in pods)
            if pods[0] == pods[1]:
                found.append((f"LS{a}->{up}", f"{up}->LS{b}"))
            else:
                cores = [f"CS{core}" for core in range(upper, self.cores, self.uppers)]
                found += [(f"LS{a}->{up}", f"{up}->{core}", f"{core}->{down}", f"{down}->LS{b}") for core in cores]
        return tuple(found)


FABRICS: Final = {
    "db4": LeafFabric(2, 0, 1, 0),
    "ls64": LeafFabric(8, 0, 8, 0),
    "ls64o2": LeafFabric(8, 0, 4, 0),
    "ls64o4": LeafFabric(8, 0, 2, 0),
    "ft128o2": LeafFabric(8, 4, 4, 16),
    "ft128o4": LeafFabric(8, 4, 2, 8),
}


def fabric_of(name: str) -> LeafFabric:
    if name[:1] == "k" and name[1:].isdigit():
        half = int(name[1:]) // 2
        return LeafFabric(half, half, half, half * half)
    if name not in FABRICS:
        raise UsageError(f"there is no fabric `{name}`", hint=f"known: k4, k8, {', '.join(FABRICS)}")
    return FABRICS[name]


class FabricRun(NamedTuple):
    row: CsvRow
    folder: Path


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    row, folder = item.value
    if row["protocol"] not in SENDERS:
        raise UsageError(f"senders of `{row['protocol']}` are not modelled")
    if row["routing"] not in ROUTINGS:
        raise UsageError(f"routing `{row['routing']}` is not modelled")
    path = folder / "flows" / f"{row['run_id']}.csv.gz"
    if not path.is_file():
        raise UsageError("the flows of the run are missing", where=str(path))
    flows = _flows(path)
    fixed = row["routing"] == "ecmp_flow"
    runs = [_figures(simulate_run(row, flows, seed)) for seed in range(1 if fixed else SEEDS)]
    predicted = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    measured = {name: float(row.get(name) or 0) for name in predicted}
    if row["protocol"].startswith("ndp") or row["protocol"] == "eqds":
        measured["nacks"] = float(row.get("retransmits") or 0)
    is_line = SENDERS[row["protocol"]] == LINE  # its NACKs are not of cut packets
    for name in ("pfc_pauses", "nacks"):
        if not measured[name] or (is_line and name == "nacks"):  # errors are relative
            del measured[name], predicted[name]
    ways = "flows and ACKs took the paths of the run" if fixed else f"means over {SEEDS} seeds of random ways"
    return PredictedRow(measured=measured, predicted=predicted, assumed=[ways])


def _figures(done: PacketTimes) -> dict[str, float]:
    fct_us = np.sort(done.finished_ps) / 1e6
    return {
        "fct_mean_us": float(fct_us.mean()),
        "fct_p99_us": float(fct_us[int(np.ceil(0.99 * len(fct_us))) - 1]),
        "fct_max_us": float(fct_us[-1]),
        "pfc_pauses": float(done.ports["pauses"].sum()),
        "nacks": float(done.ports["trims"].sum()),
    }


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


def simulate_run(row: CsvRow, flows: list[CsvRow], seed: int = 0) -> PacketTimes:
    """The run on the links that its paths name; or, where packets choose, on all links of its fabric."""
    number: dict[str, int] = {}
    fabric, sender, routing = fabric_of(row["topology"]), SENDERS[row["protocol"]], ROUTINGS[row["routing"]]
    hosts = fabric.hosts

    def way(src: int, dst: int, between: tuple[str, ...]) -> tuple[int, ...]:
        names = [f"H{src}->LS{src // hosts}", *between, f"LS{dst // hosts}->H{dst}"]
        return tuple(number.setdefault(name, len(number)) for name in names)

    def ways(src: int, dst: int, given: str) -> tuple[tuple[int, ...], ...]:
        if routing == FIXED:
            return (way(src, dst, tuple(given.split())),)
        return tuple(way(src, dst, between) for between in fabric.ways(src, dst))

    made = []
    for flow in flows:
        src, dst, size_bytes = int(flow["src"]), int(flow["dst"]), int(flow["bytes"])
        if routing == FIXED and not flow["path"] and src // hosts != dst // hosts:
            raise FormatError(f"flow {flow['flow']} has no path", where=row["run_id"])
        there, back = ways(src, dst, flow["path"]), ways(dst, src, flow["ack_path"])
        made.append(
            PacketFlow(
                path=there[0],
                back=back[0],
                paths=there,
                backs=back,
                size_bytes=size_bytes,
                begin_ps=round(float(flow["start_us"]) * 1e6),
                more_packets=int(sender == LINE and size_bytes % PAYLOAD_BYTES == 0),
            )
        )
    links = len(number)
    to_switch = np.array([not name.rpartition(">")[2].startswith("H") for name in number], np.int64)
    wires = PacketLinks(
        bytes_per_s=np.full(links, float(row["link_gbps"]) * 1e9 / 8),
        wire_ps=np.full(links, round(float(row["hop_latency_us"]) * 1e6)),
        switch_ps=np.full(links, round(float(row["switch_latency_us"]) * 1e6)),
        to_switch=to_switch,
        names=tuple(number),
        marks=to_switch if sender == RCCC else None,
    )
    return run_flows(wires, made, _rules(row, seed))


def _number(row: CsvRow, name: str) -> int:
    return int(float(row.get(name) or 0))


def _rules(row: CsvRow, seed: int) -> PacketRules:
    sender, routing = SENDERS[row["protocol"]], ROUTINGS[row["routing"]]
    header_bytes = int(row["header_bytes"])
    common: dict[str, Any] = {
        "payload_bytes": PAYLOAD_BYTES,
        "header_bytes": header_bytes,
        "answer_bytes": header_bytes,
        "answers": True,
        "sender": sender,
        "routing": routing,
        "seed": seed,
    }
    if sender == LINE:
        reacts = row["protocol"] == "dcqcn_fix"
        return PacketRules(
            **common,
            pads=True,
            pause_bytes=int(row["pfc_high_bytes"]),
            resume_bytes=int(row["pfc_low_bytes"]),
            mark_bytes=int(row["ecn_low_bytes"]) if reacts else 0,
            notice_ps=NOTICE_PS if reacts else 0,
            raise_ps=RAISE_PS if reacts else 0,
            early_packets=EARLY_PACKETS if routing == ROTATE else 0,
            room_bytes=int(row["queue_bytes"]) if routing == FLOWLET else 0,
        )
    full, room = PAYLOAD_BYTES + header_bytes, int(row["queue_bytes"])
    ps_per_byte = 8000 / float(row["link_gbps"])
    links = 6 if int(row["tiers"]) == 3 else 4
    latency_us = links * float(row["hop_latency_us"]) + (links - 1) * float(row["switch_latency_us"])
    base_ps = round(2e6 * latency_us + links * (full + header_bytes) * ps_per_byte)
    credit = {
        RCCC: (4 * PAYLOAD_BYTES, ps_per_byte / PACE),
        EQDS: (PAYLOAD_BYTES, PACE * (full + 38) * ps_per_byte / PAYLOAD_BYTES),
        NDP: (full, ps_per_byte / PACE),
    }.get(sender, (0, 0.0))
    over = float(row["oversubscription"].split(":")[0])
    return PacketRules(
        **common,
        pads=sender == NDP,
        pause_bytes=0,
        resume_bytes=0,
        mark_bytes=_number(row, "ecn_low_bytes"),
        mark_all_bytes=_number(row, "ecn_high_bytes"),
        notice_ps=0,
        raise_ps=0,
        room_bytes=room,
        trims=True,
        control_bytes=2 * room,
        answers_per_packet={EQDS: 20, NDP: 0}.get(sender, 10),
        window_bytes=int(row["cwnd_pkts"]) * full if sender in (EQDS, NDP) else int(1.5 * base_ps / ps_per_byte),
        base_ps=base_ps,
        retry_ps=NDP_RETRY_PS if sender == NDP else RETRY_PS + round(6 * room * ps_per_byte),
        pull_bytes=credit[0],
        pull_ps_per_byte=credit[1],
        least_pull_rate=0.8 / over if sender == RCCC and over > 1 else 1.0,
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
