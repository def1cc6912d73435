"""Where a tensor is that a dry run follows."""

import pytest

torch = pytest.importorskip("torch")


def test_a_tensor_of_meta_is_neither_on_the_host_nor_on_the_device() -> None:
    from etude.capture.dry.storages import TensorStorages

    found = TensorStorages()
    for place in ("cpu", "meta"):
        found.number(torch.empty(4, device=place), 0, 0)
    assert found.places == [0, 2]
