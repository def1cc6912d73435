"""Many runs in one place: what analyses say of each, as Parquet files that DuckDB, pandas and polars open."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.tell.archive.changes import QUERIES as QUERIES
    from etude.tell.archive.changes import run_changes as run_changes
    from etude.tell.archive.compact import Compacted as Compacted
    from etude.tell.archive.entry import LakeEntry as LakeEntry
    from etude.tell.archive.entry import entry_of as entry_of
    from etude.tell.archive.entry import fingerprint as fingerprint
    from etude.tell.archive.lake import Lake as Lake
    from etude.tell.archive.schema import TABLES as TABLES

__getattr__ = face(__name__)
