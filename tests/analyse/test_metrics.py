import pytest

from etude.analyse.metrics import metrics
from etude.model.schema import Collective, Kind
from timed_jobs import timed


def test_the_figures_of_a_run() -> None:
    gemm = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
    total = {
        "kind": Kind.COLL,
        "name": "sum",
        "stream": 9,
        "cpu": 0,
        "collective": Collective.ALL_REDUCE,
        "in_bytes": 100,
    }
    call = total | {"group": "g"}
    run = timed([(gemm, 0, 60), (call, 50, 100)], [(gemm, 0, 20), (call, 50, 100)], groups={"g": [0, 1]})
    found = {row["metric"]: row["value"] for row in metrics(run).to_pylist()}
    assert found["communication_fraction"] == pytest.approx(0.5)
    assert found["exposed_communication_fraction"] == pytest.approx(0.45)
    assert found["compute_comm_overlap"] == pytest.approx(0.1)
    assert found["idle_fraction"] == pytest.approx(0.15)
    assert found["load_imbalance_ratio"] == pytest.approx(1.5)
    assert found["coll_call_num"] == 1
    assert found["bus_bandwidth_all_reduce"] == pytest.approx(100 / 50e-9)
    assert "avg_step_time" not in found
