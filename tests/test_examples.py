import runpy
from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import DeadlockError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def two_ranks(second_ns: int, *, sends: bool = True) -> Job:
    """Each rank: two independent gemms, then an all-reduce of both; rank 0 sends what it got to rank 1."""
    builders = []
    for rank in (0, 1):
        b = TraceBuilder()
        gemms = [b.add(Kind.COMP, "gemm", duration_ns=ns) for ns in (100, second_ns if rank else 10)]
        total = b.add(Kind.COLL, "sum", data=gemms, collective=Collective.ALL_REDUCE, in_bytes=5000, group="dp")
        if rank == 0 and sends:
            b.add(Kind.SEND, ctrl=[total], dst=1, tag=0, in_bytes=50)
        if rank == 1:
            b.add(Kind.RECV, ctrl=[total], src=0, tag=0, in_bytes=50)
        builders.append(b)
    return job_of("two", builders, {"dp": [0, 1]})


@pytest.fixture(scope="module")
def simulate() -> Any:
    return runpy.run_path(str(EXAMPLES / "feeder_simulator.py"))["simulate"]


def test_the_feeder_simulator(simulate: Any):
    # one lane for compute: rank 1 has computed at 100 + 300; all-reduce 1000 + 5000 / 50; send 1000 + 50 / 50
    assert simulate(two_ranks(300)) == 400 + 1100 + 1001
    assert simulate(two_ranks(10)) == 110 + 1100 + 1001


def test_the_feeder_simulator_names_who_waits(simulate: Any):
    with pytest.raises(DeadlockError, match=r"1 of 2 ranks are not done\nrank 1: 3 of 4 .*\n  in flight: node 3, RECV"):
        simulate(two_ranks(10, sends=False))


def test_the_feeder_simulator_runs_a_generated_pipeline(simulate: Any, shared: Path):
    from etude.store.chakra import read_job

    assert simulate(read_job(shared / "oracle" / "stg" / "gpt_dp2_tp2_pp2_mb2")) > 0
