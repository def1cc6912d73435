import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.analyse.stragglers import stragglers
from etude.model.run import recorded
from etude.surface.cli import main
from flight_dumps import entry, write

Calls = dict[int, list[dict[str, Any]]]


def found(folder: Path, ranks: Calls, groups: dict[str, list[int]] | None = None) -> list[dict[str, Any]]:
    return stragglers(recorded(etude.open(write(folder, ranks, groups)))).to_pylist()


def before(count: int = 5) -> list[dict[str, Any]]:
    return [entry(n) for n in range(count)]


def gather(number: int, **changes: Any) -> dict[str, Any]:
    return entry(number, "nccl:_all_gather_base", elements=16, output_sizes=[[64]], **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"profiling_name": "nccl:broadcast"}, "calls broadcast (1,024 elements, float32) where ranks 0-1, 3 call"),
     ({"input_sizes": [[2048]], "output_sizes": [[2048]]}, "input of rank 2 is 2,048 elements, that of ranks 0-1, 3"),
     ({"output_sizes": [[7]]}, "output of rank 2 is 7 elements"),
     ({"input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"]}, "data type of rank 2 is bfloat16")],
)  # fmt: skip
def test_one_rank_calls_something_else(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    ranks = {rank: [*before(), entry(5, done=False, **(changes if rank == 2 else {}))] for rank in range(4)}
    rows = found(tmp_path, ranks)
    assert [(row["rank"], row["kind"], row["ranks"]) for row in rows] == [(2, "desync", [2])]
    assert said in rows[0]["evidence"]
    assert "in call 5 of group `0` of 4 ranks" in rows[0]["evidence"]


def test_the_same_elements_in_another_shape_are_the_same(tmp_path: Path) -> None:
    ranks = {rank: [entry(n, input_sizes=[[32, 32] if rank else [1024]]) for n in range(5)] for rank in range(4)}
    assert found(tmp_path, ranks) == []


def test_two_calls_in_another_order(tmp_path: Path) -> None:
    there = [*before(), entry(5, done=False), gather(6, done=False), entry(7, done=False)]
    here = [*before(), gather(5, done=False), entry(6, done=False), entry(7, done=False)]
    rows = found(tmp_path, {0: there, 1: here, 2: there, 3: there})
    assert [(row["rank"], row["kind"]) for row in rows] == [(1, "desync")]
    assert "this call and number 6 are in the opposite order" in rows[0]["evidence"]


def test_a_call_left_out_and_a_call_too_many(tmp_path: Path) -> None:
    def buckets(*sizes: int) -> list[dict[str, Any]]:
        return before() + [entry(5 + n, elements=size, done=False) for n, size in enumerate(sizes)]

    whole = buckets(100, 200, 300)
    for name, mine, said in (
        ("out", buckets(200, 300), "skipped this call and continued with the next"),
        ("more", buckets(7, 100, 200, 300), "has a call here that the others do not have"),
    ):
        (tmp_path / name).mkdir()
        rows = found(tmp_path / name, {0: whole, 1: whole, 2: mine})
        assert [(row["rank"], row["kind"]) for row in rows] == [(2, "desync")]
        assert "call 5" in rows[0]["evidence"] and said in rows[0]["evidence"]


def test_of_two_that_differ_both_are_named(tmp_path: Path) -> None:
    rows = found(tmp_path, {rank: [entry(0, elements=7 + rank, done=False)] for rank in range(2)})
    assert [(row["rank"], row["kind"], row["ranks"]) for row in rows] == [(0, "desync", [0, 1])]
    assert rows[0]["confidence"] < 0.9


def test_splits_of_an_all_to_all_need_not_be_equal_but_must_agree(tmp_path: Path) -> None:
    sent = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]

    def calls(rank: int, got: list[int]) -> list[dict[str, Any]]:
        sides = {"input_sizes": [[n] for n in sent[rank]], "output_sizes": [[n] for n in got]}
        return [entry(0, "nccl:all_to_all", input_dtypes=["Float"] * 3, output_dtypes=["Float"] * 3, **sides)]

    good = {rank: calls(rank, [row[rank] for row in sent]) for rank in range(3)}
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    assert found(tmp_path / "good", good) == []
    rows = found(tmp_path / "bad", good | {2: calls(2, [3, 60, 9])})
    assert [row["ranks"] for row in rows] == [[1, 2]]
    assert "rank 1 sends 6 elements to rank 2, which receives 60 from it" in rows[0]["evidence"]


def test_uneven_shares_of_an_all_gather_are_no_disagreement(tmp_path: Path) -> None:
    shares = [[5], [6], [7]]
    whole = {"output_sizes": shares, "output_dtypes": ["Float"] * 3}
    ranks = {r: [entry(0, "nccl:all_gather", input_sizes=[shares[r]], **whole)] for r in range(3)}
    assert found(tmp_path, ranks) == []


def test_all_stand_in_one_call_and_no_rank_is_accused(tmp_path: Path) -> None:
    rows = found(tmp_path, {rank: [*before(), entry(5, done=False), gather(6, done=False)] for rank in range(4)})
    assert [(row["rank"], row["kind"], row["ranks"]) for row in rows] == [(-1, "stalled_collective", [0, 1, 2, 3])]
    assert "all members are in all_reduce 5 of group `0` of 4 ranks" in rows[0]["evidence"]


def test_who_has_asked_for_a_call_that_its_device_never_began(tmp_path: Path) -> None:
    ranks = {r: [*before(), entry(5, done=False, **({"state": "scheduled"} if r == 3 else {}))] for r in range(4)}
    rows = found(tmp_path, ranks)
    assert [(row["rank"], row["kind"]) for row in rows] == [(3, "missing_participant")]


def test_ranks_that_wait_for_one_another_in_two_groups(tmp_path: Path) -> None:
    a, b = ({"process_group": [name, ""]} for name in "ab")
    ranks = {0: [entry(0, done=False, **a)], 1: [entry(0, done=False, **b)], 2: [entry(0, done=False, **a)]}
    rows = found(tmp_path, ranks, {"a": [0, 1, 2], "b": [0, 1]})
    assert [(row["kind"], row["ranks"]) for row in rows] == [("desync", [0, 1])]
    assert "rank 0 is in all_reduce 0 of group `a`; rank 1 is in all_reduce 0 of group `b`" in rows[0]["evidence"]


def test_who_never_came_is_named_with_the_number_of_the_call(tmp_path: Path) -> None:
    rows = found(tmp_path, {r: before() + ([] if r == 1 else [entry(5, done=False)]) for r in range(4)})
    assert [(row["rank"], row["kind"]) for row in rows] == [(1, "missing_participant")]
    assert "never reached all_reduce 5 of group `0`" in rows[0]["evidence"]


def test_one_dump_of_many_ranks_accuses_nobody(tmp_path: Path) -> None:
    assert found(tmp_path, {0: [entry(0, done=False)]}, {"0": list(range(64))}) == []


def test_real_dumps_of_runs_that_went_well_are_silent(shared: Path, tmp_path: Path) -> None:
    for name in ("colls_4p", "moe_2p", "fsdp2_4p", "dp_tp_4p"):
        folder = tmp_path / name
        folder.mkdir()
        for file in (shared / "traces" / "torch_cpu").glob(f"{name}.rank*.fr.json.gz"):
            (folder / file.name).symlink_to(file)
        assert stragglers(recorded(etude.open(folder))).num_rows == 0


def test_the_command_names_rank_call_and_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {r: [*before(), entry(5, done=False, elements=9 if r == 1 else 8)] for r in range(3)})
    assert main(["stragglers", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert list(rows[0]) == [
        "rank",
        "kind",
        "confidence",
        "evidence",
        "ranks",
        "slowdown_pct",
        "pattern",
        "since",
        "finding",
        "cost_ns",
    ]
    assert (rows[0]["rank"], rows[0]["kind"]) == (1, "desync")
