"""Whether the values of a tensor are what an operator requires, and tensors that have such values.

Needs only the standard library and PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from etude.run.replay.operands import Content, OperandNeed


def is_valid(tensor: torch.Tensor, need: OperandNeed) -> bool:
    """Whether all values are as required. On a device this waits for the result."""
    content, bound, low = need.content, need.bound, need.low
    if content == Content.ONES:
        return int((core_of(tensor) != 0).sum()) * _times(tensor) == bound
    if not tensor.numel():
        return content not in (Content.PARTS, Content.LENGTHS) or bound == 0
    values = core_of(tensor)
    if content == Content.INDEX:
        inside = (values >= low) & (values < bound)
        return bool((inside | (values == need.ignored) if need.ignored < 0 else inside).all())
    if content == Content.TOP:
        return int(values.min()) >= 0 and int(values.max()) == bound - 1
    if content in (Content.CHANCES, Content.SHARE):
        finite = bool(torch.isfinite(values).all()) and bool((values >= 0).all())
        if content == Content.SHARE:
            return finite and bool((values <= 1).all())
        return finite and bool((values.sum(-1) > 0).all())
    if content == Content.BOXES:
        return bool(((values[..., 0] >= 0) & (values[..., 0] < bound)).all())
    return _ordered(values.long().flatten(), need)


def _ordered(values: torch.Tensor, need: OperandNeed) -> bool:
    """Offsets, parts and lengths."""
    first, last, steps = int(values[0]), int(values[-1]), values.diff()
    if need.content == Content.OFFSETS:
        return bool((steps >= 0).all()) and first >= 0 and last <= need.bound and (first == 0 or need.low > 0)
    total = bool((values >= 0).all()) and int(values.sum()) == need.bound
    if need.content == Content.PARTS:
        return total
    return total and first == need.low and last >= 1 and bool((steps <= 0).all())


def core_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without repetitions: dimensions of stride 0 have one element."""
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


def _times(tensor: torch.Tensor) -> int:
    return tensor.numel() // max(core_of(tensor).numel(), 1)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, with dimensions of stride 0 as before."""
    return core_of(tensor).clone().expand(tensor.shape)


def prepared(tensor: torch.Tensor, need: OperandNeed, generator: Any) -> torch.Tensor:
    """A tensor like this one with valid values."""
    core = core_of(tensor)
    if need.content in (Content.CHANCES, Content.SHARE, Content.BOXES):
        value = {Content.CHANCES: 1.0, Content.SHARE: 0.5}.get(need.content, 0.0)
        made = torch.full(core.shape, value, dtype=tensor.dtype)
    else:
        made = _numbers(need, core.numel(), _times(tensor), generator).view(core.shape).to(tensor.dtype)
    return made.to(tensor.device).expand(tensor.shape)


def _numbers(need: OperandNeed, count: int, times: int, generator: Any) -> torch.Tensor:
    """As many integers as `count`, each of which is there `times` times in the tensor."""
    bound = max(need.bound, 0)
    if need.content in (Content.INDEX, Content.TOP):
        found = torch.randint(0, max(bound, 1), (count,), generator=generator)
        if need.content == Content.TOP and count:
            found[0] = max(bound - 1, 0)
        return found
    if need.content == Content.ONES:
        found = torch.zeros(count, dtype=torch.int64)
        found[torch.randperm(count, generator=generator)[: bound // times]] = 1
        return found
    at = torch.arange(count)
    if need.content == Content.OFFSETS:
        begin = 1 if need.low else 0
        return bound * (at + begin) // max(count - 1 + begin, 1)
    if need.content == Content.PARTS:
        return bound * (at + 1) // max(count, 1) - bound * at // max(count, 1)
    longest, left = need.low - 1, bound - count  # each has one, and the first ones have as many as there may be
    return 1 + torch.clamp(left - longest * at, 0, max(longest, 0))
