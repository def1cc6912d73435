"""Values of other tools on the same traces; `benchmarks/validate_analyse.py` has all of them."""

from pathlib import Path

import pytest
from validate_analyse import Compared, compare_hta, compare_tracelens, inputs

import etude
from etude.analyse.breakdown import breakdown
from etude.analyse.counting import TOOLS
from etude.model.run import recorded


def off(found: list[Compared]) -> list[str]:
    return [f"{c.what}: {c.theirs} against {c.ours}" for c in found if not c.good]


@pytest.mark.parametrize(
    ("name", "ranks"), [("nccl_data_ns", None), ("dlrm8", [0, 1]), ("cuda_event_sync", None), ("amd", None)]
)
def test_values_of_hta(shared: Path, name: str, ranks: list[int] | None) -> None:
    found = list(compare_hta(shared / "oracle" / "hta", name, ranks))
    assert len(found) > 30
    assert off(found) == []
    assert sum(c.agrees for c in found) > len(found) / 2


def test_values_of_tracelens(shared: Path) -> None:
    found = list(compare_tracelens(shared / "oracle" / "tracelens"))
    assert len(found) > 100
    assert [c.what for c in found if not c.agrees] == []


@pytest.mark.parametrize(("name", "ranks"), [("nccl_data_ns", [0]), ("dlrm8", [1, 3]), ("amd", [0])])
def test_by_default_a_breakdown_is_that_of_hta(shared: Path, name: str, ranks: list[int]) -> None:
    for rank, path in inputs(shared / "oracle" / "hta", name):
        if rank in ranks:
            job = etude.open(path)
            assert breakdown(recorded(job)) == breakdown(recorded(job), TOOLS["hta"])


def test_a_kernel_that_carried_several_messages_counts_once(shared: Path) -> None:
    from etude.analyse.operators import kernels

    job = etude.open(shared / "oracle" / "chakra_official" / "h200_nccl" / "coll" / "device.0.json.gz")
    counts = {row["name"].partition("(")[0]: row["count"] for row in kernels(recorded(job)).to_pylist()}
    assert (counts["ncclDevKernel_AllReduce_Sum_f32_RING_LL"], counts["ncclDevKernel_SendRecv"]) == (6, 10)
