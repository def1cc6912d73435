"""Who runs, and who stands for whom, in a dry run: by hand."""

import pytest

from etude.capture.dry.command import NotPythonError, rank_program
from etude.capture.dry.mesh import DryMesh, dimensions, first_ranks, mesh_of
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


def test_ranks_that_tell_whether_dimensions_differ() -> None:
    assert first_ranks([*COLUMNS, *ROWS], 8) == [0, 1, 2, 4, 6, 7]
    assert first_ranks([], 1) == [0]


def test_stages_stand_for_their_replicas() -> None:
    columns, rows = dimensions([*COLUMNS, *ROWS], 8)
    mesh = DryMesh(8, (columns, rows), (True, False))
    assert mesh.needed() == [0, 2, 4, 6]
    assert [mesh.stands_for(rank) for rank in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]
    both = DryMesh(8, (columns, rows), (True, True))
    assert both.needed() == list(range(8))
    assert DryMesh(8, (columns, rows), (False, False)).needed() == [0]


def test_parts_that_only_the_group_of_all_joins_stand_for_one_another() -> None:
    mesh = DryMesh(8, tuple(dimensions(ROWS, 8)), (True,))
    assert mesh.needed() == [0, 1]
    assert [mesh.stands_for(rank) for rank in range(8)] == [0, 1] * 4
    assert mesh_of([], 8, {}).needed() == [0]
    assert {mesh_of([], 8, {}).stands_for(rank) for rank in range(8)} == {0}


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
