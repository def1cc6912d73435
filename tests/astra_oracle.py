"""Rows of the ASTRA-sim oracle as runs: which traces, which configuration, which numbers are expected."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from etude.model.job import Job
from etude.run import astra
from etude.run.astra.config import NetworkConfig, RemoteMemoryConfig, SystemConfig
from etude.store import chakra

ROOT = Path(__file__).resolve().parents[1]
COLLECTIVE_TABLES = ("collectives_1d", "collectives_multidim", "collectives_extra")
FINISHED = ("ok", "ok_but_abort_at_exit")

# Semantics cases share traces: pattern of the case -> folder of its traces.
TRACE_OF_CASE = (
    (r"p2p_[A-Za-z]+8_0to(\d)", r"p2p_0_to_\1_of8"),
    (r"p2p_contend_.*", "p2p_contend"),
    (r"p2p_exchange_send_first.*", "p2p_exchange_send_first"),
    (r"p2p_cross_dims.*", "p2p_cross_dims"),
    (r"group4of8_.*|group_id_missing", "group4_of_8"),
    (r"nogroup4_.*|cfg_no_.*", "nogroup_4"),
    (r"group_all16_2d", "group_all_as_pg"),
    (r"nogroup16_2d|impl_list_.*|aware_2d", "nogroup_16"),
    (r"group8of16_2d_.*", "group8_of_16_rows"),
    (r"group_col4of16_2d", "group4_of_16_col"),
    (r"group_ring8_.*", "group_unsorted"),
    (r"overlapping_groups(_rev)?", r"two_groups_overlap\1"),
    (r"mem_load_.*", "mem_load"),
    (r"two_colls_.*", "two_colls"),
    (r"nonpow2_(\d+)_.*", r"nonpow2_\1"),
    (r"impl_(all_to_all|all_gather|reduce_scatter)_.*", r"impl_\1"),
    (r"ring2", "nogroup_2"),
    (r"replay_only_off", "replay_only"),
    (r"size_ar_0B", "ar_0B"),
)


def oracle() -> Path | None:
    """The folder of reference results, or None if it is not at hand."""
    shared = Path(os.environ.get("ETUDE_SHARED", ROOT.parent / "shared"))
    for candidate in (shared, ROOT.parent.parent / "shared"):
        if (candidate / "oracle" / "astra").is_dir():
            return candidate / "oracle" / "astra"
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """One row: how to run it and what came out."""

    table: str
    name: str
    files: tuple[Path, ...]
    network: Path
    system: Path
    backend: str
    memory: Path | None = None
    groups: Path | None = None
    queues: int = 1
    rendezvous: bool = False
    injection: float = 1.0
    finishes: bool = True
    max_ns: int | None = None
    min_ns: int | None = None
    per_rank_ns: tuple[int, ...] = ()
    per_rank_exposed_ns: tuple[int, ...] = ()
    exposed_range_ns: tuple[int, int] | None = None
    user_s: float = 0.0
    row: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, int] = field(default_factory=dict)
    """System values that the configuration at hand has otherwise."""


_networks, _systems, _memories, _groups = (
    cache(astra.read_network),
    cache(astra.read_system),
    cache(astra.read_remote_memory),
    cache(astra.read_groups),
)


def read_job(files: tuple[Path, ...]) -> Job:
    """The job of these files: one file that all NPUs run, or `name.{rank}.et` of each."""
    first = files[0]
    return chakra.read_job(first if len(set(files)) == 1 < len(files) else first.with_name(first.name.split(".")[0]))


_jobs = cache(read_job)


def configs(case: Case) -> tuple[NetworkConfig, SystemConfig]:
    return _networks(case.network), replace(_systems(case.system), **case.overrides)


def options(case: Case, *, by_message: bool = False) -> astra.AstraOptions:
    """What the command line of a case says."""
    return astra.AstraOptions(
        remote_memory=_memories(case.memory) if case.memory else RemoteMemoryConfig(),
        groups=_groups(case.groups) if case.groups else {},
        backend=case.backend,
        num_queues_per_dim=case.queues,
        rendezvous=case.rendezvous,
        injection_scale=case.injection,
        is_one_for_all=len(set(case.files)) == 1 < len(case.files),
        is_message_by_message=by_message,
    )


def simulate(case: Case, *, by_message: bool = False) -> astra.AstraResult:
    return astra.run(_jobs(case.files), *configs(case), options(case, by_message=by_message))


def _rows(root: Path, name: str) -> Iterator[dict[str, str]]:
    with (root / f"{name}.csv").open(newline="") as f:
        yield from csv.DictReader(f)


def _options(text: str) -> dict[str, object]:
    found = dict(re.findall(r"--([\w-]+)=(\S+)", text))
    return {
        "queues": int(found.get("num-queues-per-dim", 1)),
        "rendezvous": found.get("rendezvous-protocol") == "true",
        "injection": float(found.get("injection-scale", 1.0)),
    }


def collective_cases(root: Path, table: str) -> Iterator[Case]:
    for row in _rows(root, table):
        network = row["network_config"] if "network_config" in row else f"{row['network']}.yml"
        trace = row.get("et") or f"{row['collective']}_{row['size_name']}.et"
        ok = row["status"] in FINISHED
        yield Case(
            table,
            f"{row['backend']} {network} {row['system_config']} {trace} {row.get('extra_args', '')}".strip(),
            (root / "et" / trace,) * int(row["npus"]),
            root / "configs/network" / network,
            root / "configs/system" / row["system_config"],
            row["backend"],
            finishes=ok,
            max_ns=int(row["cycles_max_ns"]) if ok else None,
            min_ns=int(row["cycles_min_ns"]) if ok else None,
            user_s=float(row["sim_user_s"]),
            row=row,
            **_options(row.get("extra_args", "")),
        )


def example_cases(root: Path) -> Iterator[Case]:
    """Runs that ship with ASTRA-sim and whose inputs are at hand: ring collectives of 1 MB in four chunks, and the
    H100 one. The custom collective and the regression test come with traces of their own, which are not here."""
    for row in _rows(root, "upstream_examples"):
        expected = {"max_ns": int(row["cycles_max_ns"]), "min_ns": int(row["cycles_min_ns"]), "row": row}
        match = re.search(r"(all_?reduce|all_?gather|reduce_?scatter|all_to_all)_(\d+)npus", row["example"])
        if row["example"].endswith("HGX-H100-validated"):
            yield Case(
                "upstream_examples",
                row["example"],
                (root / "et/all_reduce_1MB.et",) * 8,
                root / "configs/network/Switch_8_llm.yml",
                root / "configs/system/llm_ring_s1_roofline_h100.json",
                row["backend"],
                overrides={"splits": 4, "active_chunks": 2},
                **expected,
            )
        elif match and "Ring" in row["example"]:
            name = re.sub("^(all|reduce)_?", r"\1_", match[1])
            n = int(match[2])
            yield Case(
                "upstream_examples",
                f"{row['backend']} {row['example']}",
                (root / f"et/{name}_1MB.et",) * n,
                root / f"configs/network/Ring_{n}.yml",
                root / "configs/system/1d_ring_s4.json",
                row["backend"],
                **expected,
            )


def left_out(root: Path) -> Iterator[tuple[str, str]]:
    """Recorded runs in which all ranks finished and that cannot be repeated, and why."""
    run = {case.row["example"] for case in example_cases(root)}
    for row in _rows(root, "upstream_examples"):
        if row["example"] not in run:
            yield f"upstream_examples: {row['backend']} {row['example']}", "comes with traces of its own, not at hand"
    for row in _rows(root, "chakra_test_traces"):
        if int(row["n_finished"]) == len(row["cycles_per_rank_ns"].split(";")) and row["cycles_per_rank_ns"]:
            yield (
                f"chakra_test_traces: {row['backend']} {row['case']}",
                "a trace of another repository, edited; neither it nor the network and system files are at hand",
            )


def semantics_cases(root: Path) -> Iterator[Case]:
    for row in _rows(root, "semantics"):
        folder = row["case"]
        for pattern, target in TRACE_OF_CASE:
            if re.fullmatch(pattern, folder):
                folder = re.sub(pattern, target, folder)
                break
        network = root / "configs/network" / row["network_config"]
        npus = _networks(network).num_npus
        files = tuple(root / "et/semantics" / folder / f"w.{r}.et" for r in range(npus))
        cycles = tuple(int(c) for c in row["cycles_per_rank_ns"].split(";") if c)
        exposed = tuple(int(c) for c in row["exposed_per_rank_ns"].split(";") if c)
        group = row["comm_group_config"]
        yield Case(
            "semantics",
            f"{row['backend']} {row['case']}",
            files,
            network,
            root / "configs/system" / row["system_config"],
            row["backend"],
            root / "configs/remote_memory" / row["remote_memory_config"],
            root / "configs/comm_group" / group if group else None,
            finishes=row["rc"] == "0" and int(row["n_finished"]) == npus,
            per_rank_ns=cycles,
            per_rank_exposed_ns=exposed,
            row=row,
            **_options(row["extra_args"]),
        )


def llm_cases(root: Path, traces: Path) -> Iterator[Case]:
    with (root / "llm/per_rank_cycles.json").open() as f:
        per_rank = json.load(f)
    for row in _rows(root, "llm_traces"):
        folder = traces / row["trace"]
        folder = folder / row["trace"] if (folder / row["trace"]).is_dir() else folder
        recorded = per_rank.get(row["trace"], {}).get(row["backend"], {}) if "_Switch_" not in row["network"] else {}
        is_flat = row["network"].count("Switch") == 1
        yield Case(
            "llm_traces",
            f"{row['backend']} {row['trace']} {row['network']}",
            tuple(folder / f"w.{r}.et" for r in range(int(row["ranks"]))),
            root / "configs/network" / row["network_config"],
            root / "configs/system" / row["system_config"],
            row["backend"],
            groups=folder / "w.json",
            finishes=row["status"] in FINISHED,
            max_ns=int(row["cycles_max_ns"]),
            min_ns=int(row["cycles_min_ns"]),
            per_rank_ns=tuple(recorded.get("cycles", ())) if is_flat else (),
            per_rank_exposed_ns=tuple(recorded.get("exposed", ())) if is_flat else (),
            exposed_range_ns=(int(row["exposed_max_ns"]), int(row["exposed_min_ns"])),
            user_s=float(row["sim_user_s"]),
            row=row,
        )


def timelines(root: Path) -> Iterator[tuple[str, str, Path]]:
    """(trace, backend, path of its timeline)."""
    for path in sorted((root / "llm/timelines").glob("*.csv.gz")):
        trace, backend = re.fullmatch(r"(.*)_Switch_(aware|unaware)\.csv\.gz", path.name).groups()
        yield trace, backend, path


def read_timeline(path: Path) -> np.ndarray:
    """Rows of rank, node id, node type, issue and finish."""
    with gzip.open(path, "rt") as f:
        return np.loadtxt(f, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)


def differences(case: Case, result: astra.AstraResult) -> list[str]:
    """What in a result is not as recorded."""
    out = []
    finish, exposed = result.finish_ns, result.exposed_ns
    if case.max_ns is not None and (int(finish.max()), int(finish.min())) != (case.max_ns, case.min_ns):
        out.append(f"cycles {finish.max()}/{finish.min()}, expected {case.max_ns}/{case.min_ns}")
    if case.per_rank_ns and tuple(finish.tolist()) != case.per_rank_ns:
        out.append(f"cycles per rank {finish.tolist()[:8]}, expected {list(case.per_rank_ns[:8])}")
    if case.per_rank_exposed_ns and tuple(exposed.tolist()) != case.per_rank_exposed_ns:
        out.append(f"exposed per rank {exposed.tolist()[:8]}, expected {list(case.per_rank_exposed_ns[:8])}")
    if case.exposed_range_ns and (int(exposed.max()), int(exposed.min())) != case.exposed_range_ns:
        out.append(f"exposed {exposed.max()}/{exposed.min()}, expected {case.exposed_range_ns}")
    return out
