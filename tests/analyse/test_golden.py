"""Values of other tools on the same traces; `benchmarks/validate_analyse.py` has all of them."""

from pathlib import Path

import pytest
from validate_analyse import compare_hta, compare_tracelens


@pytest.mark.parametrize(("name", "ranks"), [("nccl_data_ns", None), ("dlrm8", [0, 1]), ("cuda_event_sync", None)])
def test_values_of_hta(shared: Path, name: str, ranks: list[int] | None) -> None:
    found = list(compare_hta(shared / "oracle" / "hta", name, ranks))
    assert len(found) > 3
    off = [f"{c.what}: {c.theirs} against {c.ours}" for c in found if not c.good]
    assert off == []
    assert sum(c.off_pct <= 0.5 for c in found) > len(found) / 3


def test_values_of_tracelens(shared: Path) -> None:
    found = list(compare_tracelens(shared / "oracle" / "tracelens"))
    assert len(found) > 50
    assert [f"{c.what}: {c.theirs} against {c.ours}" for c in found if c.off_pct > 0.5] == []
