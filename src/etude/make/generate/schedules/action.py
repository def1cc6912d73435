"""Action: what a rank of a pipeline does with one stage and one micro-batch."""

from __future__ import annotations

from enum import IntEnum


class Action(IntEnum):
    """What a rank does with one stage and one micro-batch."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    """The whole backward: gradients of the input and of the weights."""
    INPUT = 3
    """Only the gradient of the input; the previous stage can continue."""
    WEIGHT = 4
    """The gradient of the weights, which no other stage waits for."""
    REDUCE = 5
    """Gradients of a window are summed over the ranks that hold the stage; the number is the window's."""
    UPDATE = 6
    """All weights of the rank are updated with the gradients of a window; the number is the window's."""

    @property
    def letter(self) -> str:
        return "?FBIWRU"[self]


Step = tuple[Action, int, int, bool]
"""(action, stage, micro-batch, runs together with the next)."""
