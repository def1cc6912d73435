"""Times of nodes from a file: what is no such file is said."""

from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.store.times import read_timing
from store_jobs import tiny_job


@pytest.mark.parametrize("name", ["none.parquet", "none.csv"])
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_timing(tiny_job(), tmp_path / name)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folder, not a file of times"):
        read_timing(tiny_job(), tmp_path)
