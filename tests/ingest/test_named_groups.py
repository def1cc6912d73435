"""Groups that a recording did not name, from a file: by hand, and of a recording whose names were taken out."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base.errors import MismatchError, UsageError
from etude.capture.ingest.named_groups import with_named_groups
from etude.model.build import TraceBuilder
from etude.model.job import Job, assemble
from etude.model.schema import Collective, Kind


def four_ranks(*, unknown: bool = True) -> Job:
    """Two calls a rank: on all four, and on a group without a name."""
    parts = []
    for rank in range(4):
        b = TraceBuilder()
        b.add(Kind.COLL, collective=Collective.ALL_REDUCE, in_bytes=8, group="all")
        b.add(Kind.COLL, collective=Collective.ALL_GATHER, in_bytes=8, group="unknown" if unknown else "all")
        parts.append(b.part(rank, {"all": [0, 1, 2, 3]}))
    return assemble("four", parts)


def written(folder: Path, groups: object) -> Path:
    (folder / "groups.json").write_text(json.dumps(groups))
    return folder / "groups.json"


def members(job: Job, rank: int) -> list[list[int]]:
    """The members of the group of each slot of a rank."""
    found = [job.groups.ranks(int(group)) for group in job.group_slots(rank)]
    return [[] if ranks is None else ranks.tolist() for ranks in found]


def test_each_rank_takes_its_own_group(tmp_path: Path) -> None:
    named = with_named_groups(four_ranks(), written(tmp_path, {"odd": [1, 3], "even": [2, 0]}))
    assert [members(named, rank)[1] for rank in range(4)] == [[2, 0], [1, 3], [2, 0], [1, 3]]
    assert [members(named, rank)[0] for rank in range(4)] == [[0, 1, 2, 3]] * 4
    assert sorted(named.groups.names) == ["all", "even", "odd"]
    assert named.world_size == 4


def test_members_may_be_ranks_that_were_not_recorded(tmp_path: Path) -> None:
    named = with_named_groups(four_ranks(), written(tmp_path, {"tp": [0, 1, 2, 3, 9]}))
    assert members(named, 2)[1] == [0, 1, 2, 3, 9]
    assert named.world_size == 10


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"a": [0, 1, 2]}, "rank 3 has collectives of a group that was not recorded"),
        ({"a": [0, 1, 2, 3], "b": [1]}, "rank 1 is in `a` and in `b`"),
        ({"a": [0, 1, 2, 3, 0]}, "rank 0 is in `a` twice"),
        ({"a": [0, 1, 2, 3], "b": []}, "group `b` has no members"),
    ],
)
def test_a_file_that_leaves_doubt_is_refused(tmp_path: Path, groups: object, words: str) -> None:
    with pytest.raises((UsageError, MismatchError), match=words):
        with_named_groups(four_ranks(), written(tmp_path, groups))


def test_where_all_are_known_the_file_would_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="all groups of the recording have their members"):
        with_named_groups(four_ranks(unknown=False), written(tmp_path, {"a": [0, 1, 2, 3]}))


def test_a_recording_without_the_names_of_its_groups(shared: Path, tmp_path: Path) -> None:
    """Two ranks of which nothing says who reduces with whom."""
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(2):
        name = f"tp_2p.rank{rank}.kineto.json.gz"
        trace: dict[str, Any] = json.loads(gzip.decompress((shared / "traces" / "torch_cpu" / name).read_bytes()))
        trace.get("distributedInfo", {}).pop("pg_config", None)
        for event in trace["traceEvents"]:
            if isinstance(event.get("args"), dict):
                event["args"] = {k: v for k, v in event["args"].items() if "rocess Group" not in k}
        (run / name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    assert [etude.open(run).groups.ranks(g) for g in range(1)] == [None]
    job = etude.open(run, groups=written(tmp_path, {"tp": [0, 1]}))
    assert [members(job, rank) for rank in range(2)] == [[[0, 1]], [[0, 1]]]
