"""Texts of a recording as arguments; the expectations are written by hand."""

from etude.run.replay.arguments import arguments, contiguous, results


def test_tensors_lists_numbers_and_nothing():
    found = arguments(
        "[[7, 8, 4, 6, 4, 'cuda:0'], [[1, 2, 0, 2, 8, 'cpu'], [3, 2, 0, 2, 8, 'cpu']], [2, -1], True, 0.5, 'inf', "
        "'<None>', 'cuda:0']",
        "['Tensor(float)', 'GenericList[Tensor(long int),Tensor(long int)]', 'GenericList[Int,Int]', 'Bool', 'Double', "
        "'Double', 'None', 'Device']",
        "[[2, 3], [[2], [2]], [[], []], [], [], [], [], []]",
        "[[3, 1], [[1], [1]], [[], []], [], [], [], [], []]",
    )
    assert found.whole
    assert found.form == [
        {"t": 0}, [{"t": 1}, {"t": 2}], [2, -1], True, 0.5, {"f": "inf"}, None, {"device": "cuda:0"},
    ]  # fmt: skip
    first = found.tensors[0]
    assert (first.storage, first.offset, first.dtype, first.shape, first.device) == (8, 4, "float32", (2, 3), "cuda:0")
    assert first.extent_bytes == (4 + 3 + 2 + 1) * 4


def test_an_object_or_a_list_that_was_cut_is_not_whole():
    assert not arguments("['<Object>']", "['Object']", "[[]]", "[[]]").whole
    assert not arguments("[[1, 2]]", "['GenericList[Int,Int,Int]']", "[[[], []]]", "[[[], []]]").whole
    assert arguments("", "", "", "").whole


def test_lists_of_lists():
    one = "[1, 2, 0, 2, 4, 'cpu']"
    found = arguments(
        f"[[[{one}, {one}], [{one}]]]",
        "['GenericList[GenericList[Tensor(float),Tensor(float)],GenericList[Tensor(float)]]']",
        "[[[[2], [2]], [[2]]]]",
        "[[[[1], [1]], [[1]]]]",
    )
    assert found.whole and found.form == [[[{"t": 0}, {"t": 1}], [{"t": 2}]]]


def test_a_tensor_that_is_not_there_is_none():
    found = arguments("[[108, 0, 0, 0, 0, '']]", "['Tensor(nullptr (uninitialized))']", "[[]]", "[[]]")
    assert found.whole and found.form == [None] and not found.tensors


def test_results_are_opened_in_order():
    assert list(results([{"t": 0}, [{"t": 1}, {"t": 2}], 512])) == [{"t": 0}, {"t": 1}, {"t": 2}, 512]
    assert contiguous((2, 3, 4)) == (12, 4, 1)
