"""What operators require of the values of their arguments: indices below a size, masks with a number of ones, offsets.

On a CPU a wrong value is an error of one call. On a CUDA device it ends the context of the process, with all its
memory, so values are checked or prepared before a call. A table: operator -> what it requires; arguments are in the
order of the schema. Needs neither PyTorch nor NumPy: tensors are anything with a `shape` and a `dtype`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from math import prod
from typing import Any, Final, NamedTuple

from etude.run.replay.program import NOTHING


class Content(IntEnum):
    """What the values of a tensor must be."""

    NONE = 0
    INDEX = 1
    """Integers from `low` (included) to `bound` (excluded)."""
    TOP = 2
    """Integers from 0, of which the largest is `bound` - 1: the size of the result."""
    ONES = 3
    """As many as `bound` elements are not 0."""
    CHANCES = 4
    """Finite numbers, none below 0 and some above: weights of a random choice."""
    SHARE = 5
    """Numbers from 0 to 1."""
    OFFSETS = 6
    """Integers in ascending order from 0 or more to `bound` or less; the first is 0 if `low` is."""
    PARTS = 7
    """Integers from 0, with the sum `bound`."""
    LENGTHS = 8
    """Integers from 1 to `low` in descending order, the first is `low`, with the sum `bound`."""
    BOXES = 9
    """Rows of five numbers, the first of which is an index below `bound`."""


class OperandNeed(NamedTuple):
    """What an operator requires of one tensor."""

    argument: int
    item: int
    """Position in a list of tensors; NOTHING: the argument is the tensor itself."""
    content: Content
    bound: int
    low: int = 0
    ignored: int = 0
    """An integer that is accepted too: the class of targets that do not count."""
    lasting: bool = False
    """Whether the operator that makes the tensor gives it valid values in any case."""


class _Given:
    """The arguments of a call, and the recorded shapes of its results."""

    def __init__(self, values: Sequence[Any], made: Sequence[Sequence[int]]) -> None:
        self.values, self.made = values, made

    def has(self, at: int) -> bool:
        return at < len(self.values) and hasattr(self.values[at], "shape")

    def shape(self, at: int) -> tuple[int, ...]:
        return tuple(self.values[at].shape)

    def number(self, at: int, default: int = 0) -> int:
        value = self.values[at] if at < len(self.values) else None
        return value if isinstance(value, int) else default

    def size(self, at: int, dim: int) -> int:
        shape = self.shape(at)
        return shape[dim % len(shape)] if shape else 1


_Rule = Callable[[_Given], Iterator[OperandNeed]]


def whole(tensor: Any) -> bool:
    """Whether a tensor has integers, which are indices; masks of uint8 count as masks."""
    return "int" in str(tensor.dtype) and not str(tensor.dtype).endswith("uint8")


def _rows_of(table: int, index: int) -> _Rule:
    """Argument `index` selects rows of argument `table`."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        yield OperandNeed(index, NOTHING, Content.INDEX, given.size(table, 0))

    return rule


def _counted(index: int, number: int) -> _Rule:
    """Argument `number` is the number of rows from which argument `index` selects."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        yield OperandNeed(index, NOTHING, Content.INDEX, given.number(number))

    return rule


def _along(table: int, dim: int, index: int) -> _Rule:
    """Argument `index` selects from argument `table`, along the dimension given by argument `dim`."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        yield OperandNeed(index, NOTHING, Content.INDEX, given.size(table, given.number(dim)))

    return rule


def _anywhere(table: int, index: int) -> _Rule:
    """Argument `index` selects from all elements of argument `table`; the last one is -1."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        count = prod(given.shape(table))
        yield OperandNeed(index, NOTHING, Content.INDEX, count, low=-count)

    return rule


def _classes(scores: int, target: int, ignored: int = NOTHING) -> _Rule:
    """Argument `target` holds classes, argument `scores` has a score for each class, and argument `ignored` is the
    class that does not count."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        bound = given.size(scores, 1 if len(given.shape(scores)) > 1 else 0)
        yield OperandNeed(target, NOTHING, Content.INDEX, bound, ignored=given.number(ignored) if ignored >= 0 else 0)

    return rule


def _each(given: _Given) -> Iterator[OperandNeed]:
    """`index` and `index_put_`: a list of tensors, each an index of one dimension, or a mask of several."""
    table, dim = given.shape(0), 0
    for item, one in enumerate(given.values[1]):
        if not hasattr(one, "shape"):
            dim += 1
        elif whole(one):
            yield OperandNeed(1, item, Content.INDEX, table[dim], low=-table[dim])
            dim += 1
        else:
            yield from _mask(given, item, dim)
            dim += len(one.shape)


def _mask(given: _Given, item: int, dim: int) -> Iterator[OperandNeed]:
    """A mask among indices selects as many elements as its result has, or the values that are put there."""
    others = sum(hasattr(one, "shape") for one in given.values[1]) - 1
    shape = given.shape(2) if given.has(2) else given.made[0] if given.made else ()
    behind = len(given.shape(0)) - dim - len(given.values[1][item].shape)
    if not others and len(shape) > behind and (not given.has(2) or prod(shape) > 1):
        yield OperandNeed(1, item, Content.ONES, shape[len(shape) - 1 - behind])


def _found(given: _Given) -> Iterator[OperandNeed]:
    """`nonzero`: as many elements as the result has rows."""
    if len(given.values) == 1 and given.made and given.made[0]:
        yield OperandNeed(0, NOTHING, Content.ONES, given.made[0][0])


def _masked(mask: int) -> _Rule:
    """`masked_select`: argument `mask` may be smaller than the elements, and is then repeated."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        each = max(prod(given.shape(1 - mask)) // max(prod(given.shape(mask)), 1), 1)
        yield OperandNeed(mask, NOTHING, Content.ONES, given.made[0][0] // each)

    return rule


def _put(mask: int, source: int) -> _Rule:
    """Argument `source` has an element for each that argument `mask` selects."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        table = given.shape(0) if source != 0 else given.shape(1)
        each = max(prod(table) // max(prod(given.shape(mask)), 1), 1)
        yield OperandNeed(mask, NOTHING, Content.ONES, min(prod(given.shape(source)) // each, prod(given.shape(mask))))

    return rule


def _only(argument: int, content: Content) -> _Rule:
    def rule(given: _Given) -> Iterator[OperandNeed]:
        if given.has(argument):
            yield OperandNeed(argument, NOTHING, content, prod(given.shape(argument)))

    return rule


def _pooled(table: int, index: int, dims: int) -> _Rule:
    """Argument `index` holds positions within the last dimensions of argument `table`, as a pooling found them."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        yield OperandNeed(index, NOTHING, Content.INDEX, prod(given.shape(table)[-dims:]), lasting=True)

    return rule


def _unpooled(given: _Given) -> Iterator[OperandNeed]:
    yield OperandNeed(1, NOTHING, Content.INDEX, prod(given.values[2]))


def _bags(weights: int | None, index: int, offsets: int, groups: int) -> _Rule:
    """Bags of rows: argument `weights` is the number of rows (None: argument 0 is the table), `offsets` begin the bags,
    and `groups` is the bag of each index."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        rows = given.size(0, 0) if weights is None else given.number(weights)
        yield OperandNeed(index, NOTHING, Content.INDEX, rows)
        if offsets >= 0 and given.has(offsets):
            yield OperandNeed(offsets, NOTHING, Content.OFFSETS, given.size(index, 0))
        if groups >= 0 and given.has(groups):
            yield OperandNeed(groups, NOTHING, Content.INDEX, given.size(0, 0))

    return rule


def _one_hot(given: _Given) -> Iterator[OperandNeed]:
    if (classes := given.number(1, -1)) > 0:
        yield OperandNeed(0, NOTHING, Content.INDEX, classes)
    elif given.made and given.made[0]:
        yield OperandNeed(0, NOTHING, Content.TOP, given.made[0][-1])


def _bins(given: _Given) -> Iterator[OperandNeed]:
    """`bincount`: as many bins as the largest number requires, but at least argument 2."""
    bins = given.made[0][0] if given.made else given.number(2)
    yield OperandNeed(0, NOTHING, Content.TOP if bins > given.number(2) else Content.INDEX, bins)


def _take_along(given: _Given) -> Iterator[OperandNeed]:
    dim = given.values[2] if len(given.values) > 2 else None
    bound = given.size(0, dim) if isinstance(dim, int) else prod(given.shape(0))
    yield OperandNeed(1, NOTHING, Content.INDEX, bound)


def _repeated(given: _Given) -> Iterator[OperandNeed]:
    at = 1 if given.has(1) else 0
    if not (given.made and given.has(at)):
        return
    dim = given.values[2] if at and len(given.values) > 2 and isinstance(given.values[2], int) else 0
    total = given.made[0][dim]
    if prod(given.shape(at)) > 1 or at == 0:
        yield OperandNeed(at, NOTHING, Content.PARTS, total)
    elif given.size(0, dim):
        yield OperandNeed(at, NOTHING, Content.PARTS, total // given.size(0, dim))


def _packed(given: _Given) -> Iterator[OperandNeed]:
    """`_pack_padded_sequence`: lengths of sequences, of which the longest is the number of batch sizes."""
    if len(given.made) > 1 and given.made[0] and given.made[1]:
        yield OperandNeed(1, NOTHING, Content.LENGTHS, given.made[0][0], low=given.made[1][0])


def _ctc(scores: int) -> _Rule:
    """Scores of (time, batch, class), targets, lengths of inputs and of targets."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        targets, inputs, lengths = scores + 1, scores + 2, scores + 3
        yield OperandNeed(targets, NOTHING, Content.INDEX, given.shape(scores)[-1])
        if given.has(inputs):
            yield OperandNeed(inputs, NOTHING, Content.INDEX, given.shape(scores)[0] + 1)
        if given.has(lengths) and len(given.shape(targets)) == 2:
            yield OperandNeed(lengths, NOTHING, Content.INDEX, given.shape(targets)[1] + 1)
        elif given.has(lengths):
            yield OperandNeed(lengths, NOTHING, Content.PARTS, prod(given.shape(targets)))

    return rule


def _grouped(offsets: int) -> _Rule:
    """Products of groups of rows: the offsets end each group."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        if given.has(offsets):
            a, b = given.shape(0), given.shape(1)
            bound = b[-1] if len(a) == 3 else a[0] if len(b) == 3 else a[1]
            yield OperandNeed(offsets, NOTHING, Content.OFFSETS, bound, low=1)

    return rule


def _sequences(*pairs: tuple[int, int], dim: int = 0) -> _Rule:
    """(tensor, offsets): sequences that follow one another along a dimension, and where each begins and ends."""

    def rule(given: _Given) -> Iterator[OperandNeed]:
        for table, offsets in pairs:
            if given.has(offsets):
                yield OperandNeed(offsets, NOTHING, Content.OFFSETS, given.size(table, dim))

    return rule


def _jagged(given: _Given) -> Iterator[OperandNeed]:
    """Rows of different length: from values to a padded tensor, or the other way round."""
    rows = given.made[0][0] if given.number(2) else given.size(0, 0)
    for item in range(len(given.values[1])):
        yield OperandNeed(1, item, Content.OFFSETS, rows)


def _segments(given: _Given) -> Iterator[OperandNeed]:
    if given.has(2):
        yield OperandNeed(2, NOTHING, Content.PARTS, given.size(0, 0))
    if given.has(4):
        yield OperandNeed(4, NOTHING, Content.OFFSETS, given.size(0, 0))


def _boxes(given: _Given) -> Iterator[OperandNeed]:
    """Boxes of images: each names the image of the batch, and all may name the first one."""
    yield OperandNeed(1, NOTHING, Content.BOXES, 1)


def _aten(rule: _Rule, *names: str) -> dict[str, _Rule]:
    """The rule of these operators, of their in-place forms too."""
    return {f"aten::{name}{form}": rule for name in names for form in ("", "_")}


RULES: Final[dict[str, _Rule]] = (
    _aten(_rows_of(0, 1), "embedding", "embedding_renorm")
    | _aten(_counted(1, 2), "embedding_dense_backward", "embedding_backward", "embedding_sparse_backward")
    | _aten(_bags(None, 1, 2, NOTHING), "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
    | _aten(_bags(6, 1, 2, 3), "_embedding_bag_backward")
    | _aten(_bags(5, 1, NOTHING, 2), "_embedding_bag_dense_backward")
    | _aten(_along(0, 1, 2), "index_select", "index_add", "index_copy", "index_fill", "index_reduce")
    | _aten(_along(0, 1, 2), "gather", "scatter", "scatter_add", "scatter_reduce")
    | _aten(_along(1, 2, 3), "gather_backward")
    | _aten(_take_along, "take_along_dim")
    | _aten(_anywhere(0, 1), "take", "put")
    | _aten(_each, "index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
    | _aten(_one_hot, "one_hot")
    | _aten(_bins, "bincount")
    | _aten(_classes(0, 1, 4), "nll_loss", "nll_loss_forward", "nll_loss_nd", "nll_loss2d", "nll_loss2d_forward")
    | _aten(_classes(0, 1, 4), "cross_entropy_loss")
    | _aten(_classes(1, 2, 5), "nll_loss_backward", "nll_loss2d_backward")
    | _aten(_classes(0, 1), "multi_margin_loss", "multilabel_margin_loss", "multilabel_margin_loss_forward")
    | _aten(_classes(1, 2), "multi_margin_loss_backward", "multilabel_margin_loss_backward")
    | _aten(_ctc(0), "ctc_loss", "_ctc_loss", "_cudnn_ctc_loss")
    | _aten(_ctc(1), "_ctc_loss_backward")
    | _aten(_found, "nonzero", "nonzero_numpy", "argwhere", "where")
    | _aten(_masked(1), "masked_select")
    | _aten(_put(1, 2), "masked_scatter")
    | _aten(_put(2, 0), "masked_select_backward")
    | _aten(_repeated, "repeat_interleave")
    | _aten(_packed, "_pack_padded_sequence")
    | _aten(_unpooled, "max_unpool2d", "max_unpool3d")
    | _aten(_pooled(1, 7, 2), "max_pool2d_with_indices_backward")
    | _aten(_pooled(1, 7, 3), "max_pool3d_with_indices_backward")
    | _aten(_pooled(1, 2, 2), "adaptive_max_pool2d_backward")
    | _aten(_pooled(1, 2, 3), "adaptive_max_pool3d_backward")
    | _aten(_pooled(1, 4, 2), "fractional_max_pool2d_backward")
    | _aten(_only(0, Content.CHANCES), "multinomial", "poisson")
    | {"aten::bernoulli": _only(0, Content.SHARE), "aten::bernoulli_": _only(1, Content.SHARE)}
    | _aten(_only(0, Content.SHARE), "binary_cross_entropy")
    | _aten(_only(0, Content.ONES), "_assert_async")
    | _aten(_grouped(2), "_grouped_mm")
    | _aten(_grouped(4), "_scaled_grouped_mm")
    | _aten(_sequences((0, 3), (1, 4)), "_flash_attention_forward")
    | _aten(_sequences((1, 6), (2, 7)), "_flash_attention_backward")
    | _aten(_sequences((0, 4), (1, 5), dim=1), "_efficient_attention_forward")
    | _aten(_sequences((1, 6), (2, 7), dim=1), "_efficient_attention_backward")
    | _aten(_jagged, "_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward")
    | _aten(_segments, "segment_reduce")
    | {"torchvision::roi_align": _boxes, "torchvision::roi_pool": _boxes}
    | {"torchvision::_roi_align_backward": _boxes, "torchvision::_roi_pool_backward": _boxes}
)


def needs(name: str, values: Sequence[Any], made: Sequence[Sequence[int]] = ()) -> list[OperandNeed]:
    """What an operator (with or without its overload) requires of these arguments. `made`: the shapes of its results as
    recorded, of those that are known."""
    rule = RULES.get(name.partition(".")[0])
    if rule is None:
        return []
    try:
        return [need for need in rule(_Given(values, made)) if _applies(need, values)]
    except (IndexError, TypeError, ValueError, AttributeError):  # an overload with other arguments
        return []


def operand(values: Sequence[Any], need: OperandNeed) -> Any:
    """The argument that a need is about."""
    value = values[need.argument]
    return value if need.item == NOTHING else value[need.item]


def _applies(need: OperandNeed, values: Sequence[Any]) -> bool:
    """Targets may also be shares of classes, which have no bound."""
    tensor = operand(values, need)
    if not hasattr(tensor, "shape") or need.bound < 0:
        return False
    return whole(tensor) or "uint8" in str(tensor.dtype) or need.content in _OF_ANY_TYPE


_OF_ANY_TYPE: Final = (Content.ONES, Content.CHANCES, Content.SHARE, Content.BOXES)
