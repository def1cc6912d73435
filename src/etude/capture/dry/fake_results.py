"""Results of operators that were asked before with tensors of the same shapes, made without asking PyTorch again.

A fake tensor's operator takes PyTorch a fifth of a millisecond, most of it to find out what it found out before: a
result's shape, type and device follow from those of what is given. The first call of a kind is PyTorch's own, and is
kept as a recipe: which results are new, which are views of what, and which are the arguments themselves.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

MOST_RECIPES = 1 << 16
_NOT_BY_SHAPES = frozenset(
    f"aten::{name}"
    for name in (
        "set_",
        "resize_",
        "resize_as_",
        "_resize_output_",
        "_local_scalar_dense",
        "lift_fresh",
    )
)
"""Operators whose result, or what they do to a tensor, does not follow from shapes alone."""


@dataclass(frozen=True, slots=True)
class TensorRecipe:
    """A tensor that an operator makes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any
    device: Any
    attributes: dict[str, Any]
    """What PyTorch keeps beside such a tensor."""
    view_of: int
    """The argument whose storage it has; -1: a new one."""


@dataclass(frozen=True, slots=True)
class ArgumentRecipe:
    """The argument itself."""

    place: int


@dataclass(frozen=True, slots=True)
class ConstantRecipe:
    """No tensor."""

    value: int | None


_NOT_SEEN = ConstantRecipe(None)
Recipe = TensorRecipe | ArgumentRecipe | ConstantRecipe | list[Any] | tuple[Any, ...]


class FakeResults:
    """Makes results of calls that are known by now; asks PyTorch for others. `mode` is that of the fake tensors."""

    def __init__(self, torch: Any, mode: Any) -> None:
        module: Any = import_module("torch._subclasses.fake_tensor")
        self._torch, self._fake = torch, module.FakeTensor
        self._recipes: dict[Any, Recipe | None] = {}
        self._by_shapes: dict[Any, bool] = {}
        plain = (torch.dtype, torch.device, torch.layout, torch.memory_format)
        self._plain = {int, bool, str, type(None), *plain}
        warns = getattr(mode, "_allow_unsafe_data_ptr_access", True)
        name = "_set_warn_deprecated_on_mutable_data_ptr" if warns else "_set_throw_on_mutable_data_ptr"
        self._guard_data: Any = getattr(torch._C, name, None)
        self._meta = torch.device("meta")

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator."""
        known = self._by_shapes.get(function)
        if known is None:
            known = self._by_shapes[function] = self._guard_data is not None and self._goes_by_shapes(function)
        if not known:
            if function.namespace == "profiler":  # marks of the profiler take no tensor
                with self._torch._C._DisableTorchDispatch():
                    return function(*args, **kwargs)
            return function(*args, **kwargs)
        given: list[Any] = []
        key = self._key(function, args, kwargs, given)
        if key is None:
            return function(*args, **kwargs)
        recipe = self._recipes.get(key, _NOT_SEEN)
        if recipe is _NOT_SEEN:
            return self._first(key, function, args, kwargs, given)
        return function(*args, **kwargs) if recipe is None else self._made(recipe, given)

    def _key(self, function: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """All that decides of a result, None where that is not known; the tensors go to `given`."""
        torch = self._torch
        with torch._C.DisableTorchFunction():
            try:
                parts = tuple([self._part(value, given) for value in args])
                named = tuple([(name, self._part(value, given)) for name, value in kwargs.items()]) if kwargs else ()
            except NotImplementedError:
                return None
        return function, parts, named, torch.get_default_dtype(), torch.is_inference_mode_enabled()

    def _goes_by_shapes(self, function: Any) -> bool:
        tags, name = self._torch.Tag, function._schema.name
        asks = {tags.dynamic_output_shape, tags.data_dependent_output, tags.inplace_view}
        return (
            name.startswith(("aten::", "fsdp::", "_c10d_functional::"))
            and name not in _NOT_BY_SHAPES
            and not asks & set(function.tags)
        )

    def _part(self, value: Any, given: list[Any]) -> Any:
        """What decides of an argument; its tensors go to `given`."""
        kind = type(value)
        if kind is self._fake:
            given.append(value)
            return self._look(value)
        if kind in self._plain:
            return kind, value
        if kind is list or kind is tuple:
            return (kind, *[self._part(one, given) for one in value])
        if kind is float:
            return kind, repr(value)
        raise NotImplementedError

    def _look(self, tensor: Any) -> tuple[Any, ...]:
        keys = self._torch._C._dispatch_keys(tensor).raw_repr()
        shape = tensor.shape, tensor.stride(), tensor.storage_offset()
        return (*shape, tensor.dtype, tensor.device, keys, tensor.requires_grad)

    def _state(self, tensor: Any) -> tuple[Any, ...]:
        return (*self._look(tensor), tensor.untyped_storage().nbytes(), tensor.layout)

    def _first(self, key: Any, function: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """PyTorch's own result, which is kept as a recipe if one makes the same."""
        with self._torch._C.DisableTorchFunction():
            before = [self._state(tensor) for tensor in given]
        result = function(*args, **kwargs)
        with self._torch._C.DisableTorchFunction():
            recipe = None
            if before == [self._state(tensor) for tensor in given]:
                recipe = self._recipe(result, given)
                if recipe is not None and not self._is_like(self._made(recipe, given), result):
                    recipe = None
        if len(self._recipes) >= MOST_RECIPES:
            self._recipes.clear()
        self._recipes[key] = recipe
        return result

    def _recipe(self, result: Any, given: list[Any]) -> Recipe | None:
        if result is None or type(result) is int:
            return ConstantRecipe(result)
        if isinstance(result, (list, tuple)):
            if type(result) not in (list, tuple):
                return None
            made = [self._recipe(one, given) for one in result]
            return None if any(one is None for one in made) else type(result)(made)
        if type(result) is not self._fake:
            return None
        for place, tensor in enumerate(given):
            if tensor is result:
                return ArgumentRecipe(place)
        storage = result.untyped_storage()._cdata
        views = [place for place, tensor in enumerate(given) if tensor.untyped_storage()._cdata == storage]
        return TensorRecipe(
            tuple(result.shape),
            tuple(result.stride()),
            result.storage_offset(),
            result.dtype,
            result.device,
            dict(result.__dict__),
            views[0] if views else -1,
        )

    def _is_like(self, made: Any, result: Any) -> bool:
        if result is None or type(result) is int:
            return bool(made == result)
        if isinstance(result, (list, tuple)):
            storages = [
                len({one.untyped_storage()._cdata for one in side if type(one) is self._fake})
                for side in (made, result)
            ]
            return storages[0] == storages[1] and all(map(self._is_like, made, result))
        return bool(self._state(made) == self._state(result) and made.__dict__ == result.__dict__)

    def _made(self, recipe: Any, given: list[Any]) -> Any:
        kind = type(recipe)
        if kind is ArgumentRecipe:
            return given[recipe.place]
        if kind is ConstantRecipe:
            return recipe.value
        if kind is not TensorRecipe:
            return kind([self._made(one, given) for one in recipe])
        torch = self._torch
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if recipe.view_of < 0:
                plain = torch.empty_strided(recipe.shape, recipe.stride, dtype=recipe.dtype, device=self._meta)
            else:
                plain = torch.empty_strided((0,), (1,), dtype=recipe.dtype, device=self._meta)
                storage = given[recipe.view_of].untyped_storage()
                plain.set_(storage, recipe.offset, recipe.shape, recipe.stride)
            made = torch.Tensor._make_subclass(
                self._fake, plain, False, dispatch_device=True, device_for_backend_keys=recipe.device
            )
        made.__dict__.update(recipe.attributes)
        self._guard_data(made)
        return made
