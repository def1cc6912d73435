"""What findings say: no time of a rank is longer than the run, no share is more than all, the dearest comes first, and
what helps is what the re-timed run gains."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from etude.analyse.devices import device_of, recognised
from etude.analyse.diagnose import faults
from etude.analyse.waiting import waiting
from etude.base.errors import DeadlockError
from etude.capture.ingest import causal, reading
from etude.model.run import Run, recorded
from etude.model.schema import Collective, Kind
from etude.run.simulate.options import Options
from etude.run.simulate.run import simulate
from etude.tell.report import collectives
from etude.tell.report.compose import report
from etude.tell.report.subject import Subject
from etude.tell.view.page import Page
from simulated_jobs import random_job, symmetric_job, system
from summed_steps import noise, run_of
from timed_jobs import timed
from training_step import training_step

UNITS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9}
TIME = re.compile(r"(?<![\w.])(\d[\d.,]*) (ns|µs|ms|s|min|h)\b(?!/)")
SHARE = re.compile(r"([\d.]+)%(?! (?:longer|slower|more)|:)")  # a row above its roof has more than all of it
SUM = {"kind": Kind.COLL, "name": "sum", "stream": 9, "cpu": 0, "collective": Collective.ALL_REDUCE}


def said(page: Page) -> list[str]:
    """Every sentence at the top of a page."""
    cards = [f"{card.value} {card.note}" for card in page.cards]
    return [page.verdict, *cards, *(text for t in page.told for text in (t.what, t.why, t.cost))]


def checked(run: Run) -> Page:
    """No time that is stated exceeds the run, no share exceeds all, and costs are in order."""
    page = report(run, device=device_of(run.job))
    span = Subject(run, "").span_ns
    for text in said(page):
        for number, unit in TIME.findall(text):
            assert float(number.replace(",", "")) * UNITS[unit] <= 1.006 * span, (text, span)
        for share in SHARE.findall(text):
            assert float(share) <= 100, text
    costs = [t.cost_ns for t in page.told if t.cost_ns is not None]
    assert costs == sorted(costs, reverse=True)
    assert all(0 <= cost <= span for cost in costs), (costs, span)
    return page


def test_waiting_is_that_of_a_rank_not_the_sum_over_groups() -> None:
    """Four pairs at once. The first of each comes 100 ns early, so a rank waits 50 ns on average, in a run of 120."""
    early, late = [(SUM, 0, 120)], [(SUM, 100, 120)]
    ranks = [[(node | {"group": f"g{i // 2}"}, s, e) for node, s, e in (late if i % 2 else early)] for i in range(8)]
    run = timed(*ranks, groups={f"g{i}": [2 * i, 2 * i + 1] for i in range(4)})
    found = waiting(run)
    assert found["in_collectives_ns"].to_pylist() == [120, 20] * 4
    assert found["wait_ns"].to_pylist() == [100, 0] * 4
    told = collectives.waiting(Subject(run, ""))
    assert told is not None
    assert told.share == pytest.approx(400 / 560)
    assert told.why.startswith("a rank is in collectives for 70 ns and waits for 50 ns of that, on average.")
    checked(run)


def test_collectives_that_overlap_are_waited_for_once() -> None:
    """Rank 0 is in two collectives at once, 0..100 and 10..110, which take 20 and 30: nothing moves in 0..80."""
    a, b = SUM | {"group": "a"}, SUM | {"group": "b", "stream": 10}
    run = timed([(a, 0, 100), (b, 10, 110)], [(a, 80, 100)], [(b, 80, 110)], groups={"a": [0, 1], "b": [0, 2]})
    assert waiting(run).to_pylist() == [
        {"rank": 0, "in_collectives_ns": 110, "wait_ns": 80},
        {"rank": 1, "in_collectives_ns": 20, "wait_ns": 0},
        {"rank": 2, "in_collectives_ns": 30, "wait_ns": 0},
    ]


@pytest.mark.parametrize("seed", range(16))
def test_figures_of_random_runs_are_possible(seed: int) -> None:
    rng = random.Random(seed)
    job = symmetric_job(rng) if seed % 2 else random_job(rng, broken=False, events=rng.randint(5, 40))
    try:
        run = simulate(job, system(16))
    except DeadlockError:
        return
    if run.timing.span() is not None:
        checked(run)


JOBS = {
    "colls_4p": "traces/torch_cpu/colls_4p.rank?.kineto.json.gz",
    "dp_tp_4p": "traces/torch_cpu/dp_tp_4p.rank?.kineto.json.gz",
    "pp_1f1b_4p": "traces/torch_cpu/pp_1f1b_4p.rank?.kineto.json.gz",
    "ddp_2p": "traces/torch_cpu/ddp_2p.rank?.kineto.json.gz",
    "fsdp": "oracle/chakra_official/h200_nccl/fsdp/device.?.json.gz",
    "coll": "oracle/chakra_official/h200_nccl/coll/device.?.json.gz",
    "ddp": "traces/h200/ddp_rank?_kineto.json.gz",
    "replay": "measured/replay/gpt_m_b4_t2048_kineto.json.gz",
    "timesformer": "traces/public/h100_timesformer.kineto.json.gz",
    "resnet": "traces/public/mi300_resnet_act_checkpoint.kineto.json.gz",
    "sglang": "traces/public/sglang_qwen3_8b_decode.kineto.json.gz",
    "infer": "traces/h200/llama_infer_kineto.json.gz",
}


def opened(shared: Path, pattern: str) -> Run:
    paths = sorted(shared.glob(pattern))
    assert paths
    linked = [causal.convert(reading.load_device(path), rank=rank) for rank, path in enumerate(paths)]
    return recorded(causal.to_job("run", linked))


@pytest.mark.parametrize("name", JOBS)
def test_figures_of_recorded_runs_are_possible(shared: Path, name: str) -> None:
    checked(opened(shared, JOBS[name]))


# -- stragglers --------------------------------------------------------------------------------------------------------


def of_stragglers(slower: np.ndarray, pause_us: np.ndarray | None = None) -> list[tuple[str, int | None]]:
    told = report(run_of(slower, pause_us)).told
    return [(str(t.what), t.cost_ns) for t in told if t.section == "stragglers"]


def test_a_group_is_one_sentence_with_the_cost_that_diagnose_gives() -> None:
    """Ranks 0, 2, 4 and 6 of 8: a row of stragglers each, one cause."""
    slower = noise(20, 8)
    slower[:, ::2] *= 1.2
    (verdict,) = faults(run_of(slower))
    words = "Ranks 0, 2, 4 and 6 take 20% longer than their peers, during the whole run."
    assert of_stragglers(slower) == [(words, verdict.cost_ns)]


def test_a_late_host_and_a_drift_are_not_said_to_take_longer_than_their_peers() -> None:
    late = np.zeros((20, 8))
    late[:, 6] = 60
    assert [what for what, _ in of_stragglers(noise(20, 8), late)] == [
        "The host of rank 6 is late, during the whole run."
    ]
    slower = noise(20, 8)
    slower[:, 3] *= np.linspace(1, 1.4, 20)
    assert [what for what, _ in of_stragglers(slower)] == ["Rank 3 becomes slower and slower."]


# -- what helps --------------------------------------------------------------------------------------------------------

CALL = {"kind": Kind.COMP, "name": "aten::add", "thread": 1, "cpu": 1}
GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}


def beside(host_ns: int, device_ns: int, steps: int = 20) -> Run:
    """A host and a device side by side, each behind its own last step: what is longer is the bottleneck."""
    nodes = []
    for i in range(steps):
        nodes.append((CALL, i * host_ns, (i + 1) * host_ns))
        nodes.append((GEMM, host_ns + i * device_ns, host_ns + (i + 1) * device_ns))
    return timed(nodes)


def told_of_host(run: Run) -> list[str]:
    return [t.what + t.why for t in report(run).told if "host" in t.what + t.why]


def test_the_host_sets_the_pace_only_where_a_faster_one_shortens_the_run() -> None:
    """20 calls of 100 ns and 20 kernels of 10 ns: the run is 2000 ns and half of that with a host twice as fast."""
    (found,) = told_of_host(beside(100, 10))
    assert "The host is the bottleneck" in found
    assert (
        "the run is 1 µs (50%) shorter with a host twice as fast, but no shorter with a device twice as fast" in found
    )


def test_a_host_beside_a_device_that_is_as_slow_does_not_set_the_pace() -> None:
    """Host 0..2120, device 106..2106. With a host twice as fast the device still ends at 2106, with both twice as fast
    the device ends at 1106."""
    (found,) = told_of_host(beside(106, 100))
    assert "is the bottleneck" not in found
    assert "too slow" not in found
    assert "The critical path runs through the host for 100% of the run." in found
    assert "14 ns (0.7%) shorter with a host twice as fast, and no shorter with a device twice as fast; " in found
    assert "1.01 µs (48%) shorter with both" in found


def test_faster_links_are_advised_only_where_the_run_gains() -> None:
    """All time is waiting for a rank that computes 1000 ns; a transfer of 10 ns is nothing to gain."""
    late = [(GEMM, 0, 1000), (SUM | {"data": [0]}, 1000, 1010)]
    run = timed([(SUM, 0, 1010)], [(SUM, 0, 1010)], late)
    (found,) = [t for t in report(run).told if "no compute hides" in t.what]
    assert "Balance the ranks, then add bandwidth" in found.why
    assert "Re-timed with transfers twice as fast, the run is 5 ns (0.5%) shorter." in found.why
    run = timed([(SUM, 0, 1000)], [(SUM, 0, 1000)])
    (found,) = [t for t in report(run).told if "no compute hides" in t.what]
    assert "use faster links" in found.why
    assert "the run is 500 ns (50%) shorter" in found.why


def test_of_one_rank_alone_links_are_not_blamed() -> None:
    """Of a collective of two only one member was recorded: its 1000 ns may all be waiting for the other."""
    run = timed([(SUM | {"group": "g"}, 0, 1000)], groups={"g": [0, 1]})
    (found,) = [t for t in report(run).told if "no compute hides" in t.what]
    assert "links" not in found.why
    assert "at most 500 ns (50%) shorter: waiting for ranks that are not present counts as transfer." in found.why


def test_a_slow_rank_costs_what_the_run_is_longer_by() -> None:
    """Against the simulation of the same job without a slow rank."""
    fast, slow = (simulate(training_step(), system(8), Options(slow_ranks=ranks)) for ranks in ({}, {3: 1.5}))
    (found,) = [t for t in report(slow).told if t.what.startswith("Rank 3 takes")]
    assert found.cost_ns == pytest.approx(slow.makespan_ns - fast.makespan_ns, rel=0.02)


def test_a_device_is_recognised_by_its_kind_alone() -> None:
    for said, name in (("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("AMD Instinct MI300X", "mi300x")):
        found = recognised(said)
        assert found is not None and name in found.name.lower()
    assert recognised("") is None and recognised("some other device") is None
