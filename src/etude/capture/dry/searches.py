"""Decisions of PyTorch's LBFGS, which asks for values at every turn: it goes on to its longest.

No tolerance is met, so that a step has `max_iter` turns; directions go down and curve up, so that each turn is
remembered; and the first step that a line search tries is taken.
"""

FILE = "optim/lbfgs.py"
DECISIONS = (
    ("opt_cond", False),
    ("ys > 1e-10", True),
    ("1.0 / flat_grad.abs().sum()", True),
    ("gtd > -tolerance_change", False),
    ("<= tolerance_change", False),
    ("f_new > (f + c1", False),
    ("abs(gtd_new) <= -c2", True),
)
"""Parts of lines, and what they come to; the first that fits."""
LOSS = float("inf")
"""The search keeps losses as plain numbers: this one is not above itself, and no small step away from itself."""
ASSUMED = "LBFGS goes on to max_iter: no tolerance is met, and the first step of a line search is taken"


def decision_of(line: str) -> bool | None:
    """What a line of the search comes to; None for one that is not known."""
    return next((found for part, found in DECISIONS if part in line), None)
