from pathlib import Path

import numpy as np
import pytest

from etude.capture.ingest.spill import SMALL, Spilled, spill


def test_arrays_come_back_from_a_file_that_has_no_name(tmp_path: Path) -> None:
    value = {"rank": 3, "times": np.arange(SMALL // 8), "why": np.zeros(5, np.uint8), "name": "run"}
    laid = spill(value, tmp_path / "0")
    assert isinstance(laid, Spilled) and (tmp_path / "0").stat().st_size >= SMALL
    found = laid.take()
    assert not list(tmp_path.iterdir())
    assert found["rank"] == 3 and found["name"] == "run" and found["why"].tolist() == [0] * 5
    assert (found["times"] == value["times"]).all() and found["times"].ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        found["times"][0] = 1


def test_a_column_in_which_nothing_was_recorded_takes_no_room(tmp_path: Path) -> None:
    empty = np.broadcast_to(np.int64(-1), (SMALL,))
    laid = spill([empty, np.zeros(SMALL, np.uint8)], tmp_path / "0")
    assert isinstance(laid, Spilled) and (tmp_path / "0").stat().st_size < 2 * SMALL
    found, _ = laid.take()
    assert found.strides == (0,) and len(found) == SMALL and found[-1] == -1


def test_what_is_small_stays_where_it_is(tmp_path: Path) -> None:
    value = [np.arange(10)]
    assert spill(value, tmp_path / "0") is value and not list(tmp_path.iterdir())
