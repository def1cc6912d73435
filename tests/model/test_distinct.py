import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.model.distinct import distinct


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2)), max_size=30))
def test_as_numpy_sorts_rows(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 3)
    found, which = distinct([table[:, 0].astype(np.int32), table[:, 1], table[:, 2]])
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert found.tolist() == expected.tolist() and which.tolist() == inverse.reshape(-1).tolist()
