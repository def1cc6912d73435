"""What shortening buys, against the simulation again with its order as a rule, and worked by hand."""

import random

import numpy as np
import pytest

from etude.analyse.critical_path import critical_path, length_ns
from etude.analyse.what_if import Retimed, what_if
from etude.base.errors import EtudeError, UsageError
from etude.model.run import Run
from etude.model.schema import Collective, Kind, Why
from etude.run.simulate.options import Options, Overlap
from etude.run.simulate.run import simulate
from simulated_jobs import random_job, random_options, symmetric_job, system
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
NORM = GEMM | {"name": "norm"}
TOTAL = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE, "group": "g"}


def test_another_path_ends_what_shortening_buys() -> None:
    """gemm 0..100 on rank 0, norm 0..70 on rank 1, then a sum of 20: of gemm's 100 only 30 can be bought."""
    run = timed(
        [(GEMM, 0, 100), (TOTAL | {"data": [0]}, 100, 120)],
        [(NORM, 0, 70), (TOTAL | {"data": [0]}, 70, 120)],
        groups={"g": [0, 1]},
    )
    classes = [("compute", "gemm"), ("compute", "norm"), ("communication", "sum"), ("compute", "")]
    rows = what_if(run, classes).to_pylist()
    assert [[row[f"buys_{part}_ns"] for part in (10, 50, 100)] for row in rows] == [
        [10, 30, 30], [0, 0, 0], [2, 10, 20], [10, 50, 100],
    ]  # fmt: skip


def test_launches_and_gaps_are_classes_of_their_own() -> None:
    call = {"kind": Kind.COMP, "name": "cudaLaunchKernel", "thread": 1, "cpu": 1}
    run = timed([(call, 0, 10), (GEMM | {"data": [0]}, 14, 90), (call, 40, 50)])
    trace = run.job.traces[0].replace(data_why=np.array([Why.LAUNCH], np.uint8))
    run = Run(run.job.replace(traces=(trace,)), run.timing)
    assert what_if(run, [("launch", "gemm"), ("host", "cudaLaunchKernel")])["buys_100_ns"].to_pylist() == [
        4,
        10,
    ]
    with pytest.raises(UsageError, match="unknown kind"):
        what_if(run, [("magic", "gemm")])


def test_it_is_the_simulation_again_with_its_order_as_a_rule() -> None:
    compared = bought = 0
    for seed in range(90):
        rng = random.Random(seed)
        job = symmetric_job(rng) if seed % 3 == 0 else random_job(rng, broken=False, events=rng.randint(1, 30))
        plain = {"overlap": Overlap(), "eager_bytes": None, "concurrent_network": False, "slow_ranks": {}, "jitter": {}}
        try:
            first = simulate(job, system(), random_options(rng, job, **plain))
            job = job.replace(timing=first.timing)
            run = simulate(job, system(), Options(policy="recorded", fold=False))
        except EtudeError:
            continue
        retimed = Retimed(run)
        assert retimed.length_ns == run.makespan_ns
        for part in (0.1, 0.5, 1.0):
            events, values = [], dict(job.values)
            for at, rank in enumerate(job.ranks.tolist()):
                trace = job.trace(rank)
                known = np.flatnonzero((trace.kind == Kind.COMP) & (trace.duration_ns > 0)).tolist()
                mine = [row for row in known if rng.random() < 0.5]
                less = trace.duration_ns.copy()
                less[mine] -= np.rint(less[mine] * part).astype(np.int64)
                values[rank] = {**values.get(rank, {}), "duration_ns": less}
                events += [2 * (int(retimed.base[at]) + row) + 1 for row in mine]
            again = simulate(job.replace(values=values), system(), Options(policy="recorded", fold=False))
            found = retimed.buys(np.array(events, np.int64), part)
            assert found == run.makespan_ns - again.makespan_ns, (seed, part)
            compared += 1
            bought += found > 0
    assert compared > 100
    assert bought > 50


def test_nothing_faster_is_the_run_as_it_was() -> None:
    run = timed([(GEMM, 5, 10), (NORM, 12, 20)], [(GEMM, 0, 30)])
    assert Retimed(run).length_ns == length_ns(critical_path(run)) == 30
