"""Results that a dry run makes itself, against those of PyTorch's fake tensors."""

from typing import Any

import pytest

from etude.capture.dry.fake_results import FakeResults

torch = pytest.importorskip("torch")
fakes = pytest.importorskip("torch._subclasses.fake_tensor")
aten = torch.ops.aten


class CountingMode(fakes.FakeTensorMode):  # type: ignore[misc, name-defined]
    """PyTorch's mode, and how many operators it was asked."""

    asked = 0

    def __torch_dispatch__(self, *given: Any, **named: Any) -> Any:
        self.asked += 1
        return super().__torch_dispatch__(*given, **named)


def seen(value: Any, given: list[Any]) -> Any:
    """What a result is: its layout, and which argument has its storage."""
    if isinstance(value, (list, tuple)):
        return [type(value), *[seen(one, given) for one in value]]
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage()
    shares = [place for place, one in enumerate(given) if one.untyped_storage()._cdata == storage._cdata]
    same = [place for place, one in enumerate(given) if one is value]
    layout = value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, storage.nbytes()
    return *layout, shares, same, value.requires_grad, type(value)


CALLS = {
    "a new tensor": lambda a, b: aten.add.Tensor,
    "another type": lambda a, b: aten._to_copy.default,
    "the argument": lambda a, b: aten.add_.Tensor,
    "a view": lambda a, b: aten.transpose.int,
    "views": lambda a, b: aten.split.Tensor,
    "a view within": lambda a, b: aten.slice.Tensor,
    "several new ones": lambda a, b: aten.max.dim,
    "a list in place": lambda a, b: aten._foreach_mul_.Scalar,
    "a product": lambda a, b: aten.mm.default,
}
ARGUMENTS: dict[str, Any] = {
    "a new tensor": lambda a, b: ((a, b), {}),
    "another type": lambda a, b: ((a,), {"dtype": torch.bfloat16}),
    "the argument": lambda a, b: ((a, b), {}),
    "a view": lambda a, b: ((a, 0, 1), {}),
    "views": lambda a, b: ((a, 3, 1), {}),
    "a view within": lambda a, b: ((a, 1, 2, 5), {}),
    "several new ones": lambda a, b: ((a, 1), {}),
    "a list in place": lambda a, b: (([a, b], 2.0), {}),
    "a product": lambda a, b: ((a, b.t()), {}),
}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", CALLS)
def test_a_result_is_that_of_pytorch_and_pytorch_is_asked_once(name: str, device: str) -> None:
    mode = CountingMode()
    results = FakeResults(torch, mode)
    with mode:
        pair = [torch.empty(4, 8, device=device) for _ in range(2)]
        function, (args, kwargs) = CALLS[name](*pair), ARGUMENTS[name](*pair)
        expected = seen(function(*args, **kwargs), pair)
        assert seen(results.call(function, args, kwargs), pair) == expected
        before = mode.asked
        assert seen(results.call(function, args, kwargs), pair) == expected
        assert mode.asked == before


def test_what_differs_is_asked_again() -> None:
    mode = CountingMode()
    results = FakeResults(torch, mode)
    with mode:
        wide = torch.empty(4, 8)
        given = [wide, wide.t(), wide.bfloat16(), wide[:2], torch.empty(4, 8, device="meta")]
        for tensor in given:
            for more in (2, 2.0, True):
                assert seen(results.call(aten.mul.Tensor, (tensor, more), {}), given) == seen(tensor * more, given)


def test_a_tensor_that_is_made_larger_is_left_to_pytorch() -> None:
    mode = CountingMode()
    results = FakeResults(torch, mode)
    with mode:
        for _ in range(3):
            tensor = torch.empty(4)
            results.call(aten.resize_.default, (tensor, [16]), {})
            assert tensor.shape == (16,) and tensor.untyped_storage().nbytes() == 64
