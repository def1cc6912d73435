"""A Python function over a space: each point once, here and in processes; what it raises is an error of its point."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import UsageError
from etude.extend import Space, evaluate
from etude.model.build import job_of
from tiny_jobs import GROUPS, ring

GRID = Space(axes={"a": [1, 2, 3], "b": [10, 20]}, when="a * b < 50")


def product(a: int, b: int) -> dict[str, Any]:
    if a == 3:
        raise ValueError("three")
    return {"product": a * b, "row": np.arange(a)}


def test_columns_of_points_and_errors_of_those_that_fail() -> None:
    table = evaluate(GRID, product)
    assert table.column_names == ["a", "b", "product", "row", "error"]
    assert table["product"].to_pylist() == [10, 20, 20, 40, None]
    assert table["row"].to_pylist() == [[0], [0], [0, 1], [0, 1], None]
    assert table["error"].to_pylist() == ["", "", "", "", "ValueError: three"]
    assert evaluate(GRID, product, {"twice": "2 * product"})["twice"].to_pylist() == [20, 40, 40, 80, None]


def test_each_point_once(tmp_path: Path) -> None:
    asked = []

    def of(a: int, b: int) -> int:
        asked.append((a, b))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return a * b

    with pytest.raises(KeyboardInterrupt):
        evaluate(GRID, of, out=tmp_path)
    assert evaluate(GRID, of, out=tmp_path)["value"].to_pylist() == [10, 20, 20, 40, 30]
    assert asked == [(1, 10), (1, 20), (2, 10), (2, 10), (2, 20), (3, 10)]  # the third was cut off


def nodes(factor: int, job: etude.Job, marker: str = "") -> int:
    """Nodes of a job, times the factor; the first process that is asked for 2 dies."""
    if factor == 2 and marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return factor * job.nodes


def test_a_job_is_sent_to_a_process_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    job = job_of("ring", [ring(rank) for rank in range(4)], GROUPS)
    shared = {"job": job, "marker": str(tmp_path / "died")}
    table = evaluate(Space(axes={"factor": [2]}), nodes, shared=shared, workers=2)
    assert (tmp_path / "died").exists()
    assert table["value"].to_pylist() == [40]
    assert table["error"].to_pylist() == [""]


def test_a_function_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be sent to other processes"):
        evaluate(GRID, lambda a, b: a * b, workers=2)
    with pytest.raises(UsageError, match="`shared` does not apply to commands"):
        evaluate(GRID, "systems --json", {"x": "1"}, shared={"job": 1})


def test_ranks_of_a_recording_are_analysed_apart(shared: Path) -> None:
    """As docs/studies.md shows it: file by file what the analysis of all of them says."""
    from etude.analyse.breakdown import breakdown

    def of(file: str) -> dict[str, Any]:
        found: dict[str, Any] = breakdown(etude.open_run(file)).to_pylist()[0]
        return found

    files = sorted(str(file) for file in (shared / "traces" / "torch_cpu").glob("ddp_2p.rank*.kineto.json.gz"))
    table = evaluate(Space(axes={"file": files}), of)
    assert table["error"].to_pylist() == ["", ""]
    assert table["rank"].to_pylist() == [0, 1]
    assert table["span_ns"].to_pylist() == [breakdown(etude.open_run(f))["span_ns"][0].as_py() for f in files]
