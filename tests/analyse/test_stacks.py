import json
from pathlib import Path
from typing import Any

import etude
from etude.analyse.operators import kernels, operators
from etude.model.run import recorded
from etude.store import chakra


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def written(folder: Path) -> Path:
    """main calls layer twice, each runs mm (which calls copy_); its backward runs on another thread."""
    events = [event("python_function", "train.py(9): main", 0, 100)]
    for i in range(2):
        at = 10 + 40 * i
        events += [
            event("python_function", f"model.py({3 + i}): layer", at, 30),
            event("python_function", "nn.Module: Linear_0", at + 1, 28),
            event("python_function", "<built-in method mm>", at + 2, 26),
            event("cpu_op", "aten::mm", at + 4, 20, **{"External id": 1 + i, "Sequence number": i}),
            event("cpu_op", "aten::copy_", at + 6, 10, **{"External id": 11 + i}),
            event("cuda_runtime", "cudaLaunchKernel", at + 8, 4, correlation=1 + i),
            event("kernel", "gemm", at + 20, 5, tid=7, correlation=1 + i, stream=7, device=0),
        ]
    backward = {"External id": 21, "Sequence number": 1, "Fwd thread id": 1}
    events += [
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 120, 20, tid=2, **backward),
        event("cuda_runtime", "cudaLaunchKernel", 124, 4, tid=2, correlation=9),
        event("kernel", "gemm_bwd", 130, 5, tid=7, correlation=9, stream=7, device=0),
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_kernel_has_the_stack_of_the_operator_that_python_called(tmp_path: Path) -> None:
    job = etude.open(written(tmp_path))
    found = {(row["stack"], row["name"]): row["count"] for row in kernels(recorded(job), ["stack", "name"]).to_pylist()}
    first, second = (f"train.py(9): main;model.py({line}): layer" for line in (3, 4))
    assert found == {(first, "gemm"): 1, (second, "gemm"): 1, (second, "gemm_bwd"): 1}  # backward is of its forward
    by_frame = kernels(recorded(job), ["stack:1"]).to_pylist()
    assert {row["stack:1"]: row["count"] for row in by_frame} == {"model.py(3): layer": 1, "model.py(4): layer": 2}
    inner = operators(recorded(job), ["name", "stack:1"]).to_pylist()
    assert {(row["name"], row["stack:1"]) for row in inner if row["name"] == "aten::copy_"} == {
        ("aten::copy_", "model.py(3): layer"), ("aten::copy_", "model.py(4): layer")
    }  # fmt: skip


def test_stacks_travel_in_et_files(tmp_path: Path) -> None:
    job = etude.open(written(tmp_path))
    (tmp_path / "out").mkdir()
    chakra.write_job(job, tmp_path / "out")
    again = etude.open(tmp_path / "out")
    assert kernels(recorded(again), ["stack"]).equals(kernels(recorded(job), ["stack"]))
