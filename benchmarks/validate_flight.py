"""Verdicts on dumps of PyTorch's Flight Recorder: as PyTorch wrote them, and with one thing wrong in them.

    python benchmarks/validate_flight.py --shared ../shared [--show]

Every recorded run of several ranks is silent as it is. Of those of four ranks with collectives of all of them, one rank
then never comes to its last such call, asks there for twice as much, or calls something else, while the others stand in
it; `etude diagnose` must name that rank, as one that hangs or disagrees, and nobody else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import etude
from etude.analyse.diagnose import faults
from etude.model.run import recorded

WRONG: Final = {"never comes": "hang", "other size": "desync", "other call": "desync"}
Dumps = dict[int, dict[str, Any]]


def dumps(shared: Path) -> Iterator[tuple[str, Dumps]]:
    """The dumps of every recorded run, by rank."""
    folder = shared / "traces" / "torch_cpu"
    for name in sorted({file.name.partition(".")[0] for file in folder.glob("*.fr.json.gz")}):
        files = {int(file.name.split(".rank")[1].partition(".")[0]): file for file in folder.glob(f"{name}.rank*.fr.*")}
        yield name, {rank: json.loads(gzip.decompress(files[rank].read_bytes())) for rank in sorted(files)}


def _has_size(entry: dict[str, Any]) -> bool:
    return not entry["is_p2p"] and "barrier" not in entry["profiling_name"] and bool(entry["input_sizes"])


def last_call(found: Dumps) -> tuple[str, int] | None:
    """(group, number) of the last collective with a size that every rank has, in a group of all."""
    calls = [
        {(e["process_group"][0], e["collective_seq_id"]) for e in one["entries"] if _has_size(e)}
        for one in found.values()
    ]
    whole = {g["pg_name"] for g in found[0]["pg_config"] if g["group_size"] == len(found)}
    shared = [call for call in set.intersection(*calls) if call[0] in whole]
    return max(shared, key=lambda call: call[1], default=None)


def with_fault(found: Dumps, bad: int, wrong: str) -> Dumps | None:
    """The dumps as they would be if this rank did something else in the last call; None: there is no such call."""
    call = last_call(found)
    if call is None:
        return None
    made: Dumps = {}
    for rank, one in found.items():
        entries = []
        for entry in one["entries"]:
            if (entry["process_group"][0], entry["collective_seq_id"]) != call or entry["is_p2p"]:
                entries.append(entry)
                continue
            stands = entry | {"state": "started", "retired": False, "time_discovered_completed_ns": None}
            if rank == bad and wrong == "other size":
                stands |= {key: [[2 * e for e in s] for s in entry[key]] for key in ("input_sizes", "output_sizes")}
            if rank == bad and wrong == "other call":
                other = "broadcast" if "all_reduce" in entry["profiling_name"] else "all_reduce"
                stands |= {"profiling_name": f"gloo:{other}"}
            if not (rank == bad and wrong == "never comes"):
                entries.append(stands)
            break  # behind it nothing was called
        made[rank] = one | {"entries": entries}
    return made


def said_of(found: Dumps) -> list[tuple[str, tuple[int, ...], str]]:
    with tempfile.TemporaryDirectory() as folder:
        for rank, one in found.items():
            (Path(folder) / f"nccl_trace_rank_{rank}").write_text(json.dumps(one))
        return [(one.kind, one.ranks, one.words) for one in faults(recorded(etude.open(folder)))]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--shared", type=Path, default=Path("../shared"))
    asked.add_argument("--show", action="store_true", help="what is said")
    given = asked.parse_args()
    right = {"as recorded": [0, 0], **{wrong: [0, 0] for wrong in WRONG}}
    for name, found in dumps(given.shared):
        cases: list[tuple[str, int, Dumps | None]] = [("as recorded", -1, found)]
        if len(found) == 4:
            cases += [(wrong, bad, with_fault(found, bad, wrong)) for bad, wrong in enumerate(WRONG, start=1)]
        for what, bad, case in cases:
            if case is None:
                continue
            said = said_of(case)
            good = [(k, r) for k, r, _ in said] == ([(WRONG[what], (bad,))] if bad >= 0 else [])
            right[what][0] += good
            right[what][1] += 1
            if given.show or not good:
                print(f"  {name}, rank {bad}: {what}: {'right' if good else 'WRONG'} {said}", file=sys.stderr)
    for what, (n, of) in right.items():
        print(f"{what:12} {n} of {of} right")
    n, of = (sum(column) for column in zip(*right.values(), strict=True))
    print(f"verdicts on Flight Recorder dumps: {n} of {of} right")
    return int(n < of)


if __name__ == "__main__":
    raise SystemExit(main())
