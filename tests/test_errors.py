import inspect
import pickle
from pathlib import Path

import pytest

from etude.base import errors
from etude.base.errors import AnswerNo, DanglingDependency, DeadlockError, EtudeError, FormatError, TraceError

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EtudeError)]


def test_the_text_is_place_problem_and_way_out():
    error = DanglingDependency(
        "node 812 waits for node 9001, which is not in the trace", where="rank 3", hint="keep the whole window"
    )
    assert str(error) == (
        "rank 3: node 812 waits for node 9001, which is not in the trace\nhint: keep the whole window"
    )
    assert (error.where, error.hint) == ("rank 3", "keep the whole window")
    assert isinstance(error, TraceError)


def test_place_and_way_out_may_be_missing():
    assert str(EtudeError("no ranks")) == "no ranks"


def test_a_format_error_knows_path_and_offset():
    error = FormatError("varint longer than ten bytes", path=Path("run/w.3.et"), offset=1042)
    assert str(error) == "run/w.3.et: byte 1042: varint longer than ten bytes"
    assert (error.path, error.offset) == ("run/w.3.et", 1042)


def test_a_format_error_at_byte_zero_says_so():
    assert str(FormatError("empty", path="a.et", offset=0)) == "a.et: byte 0: empty"
    assert str(FormatError("not an object", path="a.json", where="$.nodes[3]")) == "a.json: $.nodes[3]: not an object"


def test_no_has_another_exit_code_than_wrong():
    assert (EtudeError.exit_code, FormatError.exit_code) == (2, 2)
    assert (AnswerNo.exit_code, DeadlockError.exit_code) == (1, 1)


@pytest.mark.parametrize("kind", ALL)
def test_errors_travel_between_processes(kind: type[EtudeError]):
    sent = kind("broken", where="rank 1", hint="mend it")
    got = pickle.loads(pickle.dumps(sent))
    assert (type(got), str(got), vars(got)) == (kind, str(sent), vars(sent))


def test_the_tree_at_the_top_of_the_file_is_the_tree():
    drawn = errors.__doc__ or ""
    for kind in ALL:
        assert kind.__name__ in drawn
