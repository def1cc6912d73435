"""Who runs, and who stands for whom, in a dry run: by hand."""

import pytest

from etude.capture.dry.alike import places_to_run, standing_places
from etude.capture.dry.command import NotPythonError, rank_program
from etude.capture.dry.mesh import DryMesh, asked_with, dimensions, uniform_mesh
from etude.capture.dry.values import AskedValueError, Unknown

ROWS = [[0, 1], [2, 3], [4, 5], [6, 7]]
COLUMNS = [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_groups_are_dimensions_where_every_rank_is_once() -> None:
    found = dimensions([*COLUMNS, [0, 1, 2, 3, 4, 5, 6, 7], *ROWS, [3]], 8)
    assert [d.groups for d in found] == [tuple(map(tuple, COLUMNS)), tuple(map(tuple, ROWS))]
    assert found[0].members(5) == (1, 3, 5, 7)
    assert found[1].members(5) == (4, 5)


def test_groups_that_leave_ranks_out_are_no_dimension() -> None:
    assert dimensions([[0, 1], [2, 3]], 8) == []


def found_by_running(does: str) -> tuple[list[int], tuple[int, ...]]:
    """(Places that were run, who stands for whom), where the letter of a place is what it does."""
    line, known = list(range(len(does))), {0}
    while more := places_to_run(line, (), known, lambda a, b: does[a] == does[b]):
        known |= more
    return sorted(known), standing_places(line, (), known, lambda a, b: does[a] == does[b])


def test_places_that_do_the_same_at_both_ends_are_not_run_in_between() -> None:
    assert found_by_running("aaaaaaaa") == ([0, 7], (0,) * 8)
    assert found_by_running("a") == ([0], (0,))


def test_where_ends_differ_places_between_them_are_run_until_they_are_neighbours() -> None:
    assert found_by_running("aaaaaaab") == ([0, 3, 4, 5, 6, 7], (0,) * 7 + (7,))
    assert found_by_running("abbbbbbb") == ([0, 1, 2, 3, 4, 7], (0,) + (1,) * 7)
    assert found_by_running("abcd") == ([0, 1, 2, 3], (0, 1, 2, 3))


def test_where_ranks_take_turns_all_are_run() -> None:
    for does in ("abababab", "abababb", "abbbabbb"):
        assert found_by_running(does)[1] == tuple(does.index(one) for one in does)


def test_where_shards_change_their_size_nothing_has_to_be_searched() -> None:
    does = "aaabbbbc"
    known, line = {0}, list(range(8))
    assert places_to_run(line, (3, 7), known, lambda a, b: does[a] == does[b]) == {3, 7}
    assert not places_to_run(line, (3, 7), {0, 3, 7}, lambda a, b: does[a] == does[b])
    assert standing_places(line, (3, 7), {0, 3, 7}, lambda a, b: does[a] == does[b]) == (0, 0, 0, 3, 3, 3, 3, 7)


def test_a_cut_that_this_line_does_not_show_is_kept() -> None:
    assert standing_places(range(5), (2,), {0, 2, 4}, lambda a, b: True) == (0, 0, 2, 2, 2)


def test_a_stage_that_asks_another_runs_with_all_stages() -> None:
    assert asked_with([*COLUMNS, *ROWS], 8, 1, 3) == {1, 3, 5, 7}
    assert asked_with([], 8, 1, 3) == {1, 3}


def test_stages_stand_for_their_replicas() -> None:
    columns, rows = dimensions([*COLUMNS, *ROWS], 8)
    mesh = DryMesh(8, (columns, rows), ((0, 1, 2, 3), (0, 0)))
    assert mesh.needed() == [0, 2, 4, 6]
    assert [mesh.stands_for(rank) for rank in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]
    both = DryMesh(8, (columns, rows), ((0, 1, 2, 3), (0, 1)))
    assert both.needed() == list(range(8))
    assert DryMesh(8, (columns, rows), ((0, 0, 0, 0), (0, 0))).needed() == [0]


def test_the_last_shard_stands_for_itself() -> None:
    columns, rows = dimensions([*COLUMNS, *ROWS], 8)
    mesh = DryMesh(8, (columns, rows), ((0, 0, 0, 3), (0, 0)))
    assert mesh.needed() == [0, 6]
    assert [mesh.stands_for(rank) for rank in range(8)] == [0] * 6 + [6, 6]


def test_parts_that_only_the_group_of_all_joins_stand_for_one_another() -> None:
    mesh = DryMesh(8, tuple(dimensions(ROWS, 8)), ((0, 1),))
    assert mesh.needed() == [0, 1]
    assert [mesh.stands_for(rank) for rank in range(8)] == [0, 1] * 4
    assert uniform_mesh([], 8).needed() == [0]
    assert {uniform_mesh([], 8).stands_for(rank) for rank in range(8)} == {0}


def test_unknown_numbers_are_passed_on_but_decide_nothing() -> None:
    loss = Unknown("loss")
    assert f"{loss:.3f}" == "unknown" and str(2 * loss + 1) == "unknown"
    for decide in (lambda: loss < 1, lambda: bool(loss), lambda: int(loss), lambda: loss == 0):
        with pytest.raises(AskedValueError):
            decide()


def test_the_program_of_a_rank_is_found_in_a_command() -> None:
    assert rank_program(["python3", "-u", "train.py", "--lr", "1"]).words == ("train.py", "--lr", "1")
    assert rank_program(["python", "-m", "package.train"]).words == ("-m", "package.train")
    with pytest.raises(NotPythonError):
        rank_program(["bash", "train.sh"])
    with pytest.raises(NotPythonError):
        rank_program(["python", "-c", "print()"])
