"""Loops with a clock, found in the source and held in a list: what goes from one moment to the next by itself.

The present is called `now` in this tree. A function that in a loop makes another moment the present, or that sets the
present of a `clock`, is one of four clocks, or it goes on only as far as one of these asks it to, or it answers one
question in one piece, of which nothing outside can change anything; or its `now` is no moment of a simulation.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src" / "etude"
NOW = re.compile(r"^now(_ns|_ps|_us|_s)?$")

CLOCKS = {
    "run/simulate/engine.py: _run": "nodes of a job, on any network",
    "run/astra/kernels/events.py: pop": "ASTRA-sim's rules",
    "world/clock.py: run": "entities that last longer than a step",
    "world/serve/loop.py: advance": "requests and passes, compiled",
}
ASKED = {
    "world/clock.py: advance": "an entity's own instants, up to the moment that the world asks for",
    "world/fleet/loop.py: advance": "a training job, up to the moment that the world asks for",
    "run/simulate/packets/events.py: advance": "packets, up to the moment that the engine asks for",
    "run/simulate/networks/transfers.py: happen_all": "an instant of a network, when the engine is there",
    "run/simulate/networks/seam.py: _join_posted": "operations that join at an instant of the engine",
}
PIECES = {
    "cost/contention/blocks.py: _run": "the price of two kernels next to each other",
    "make/generate/schedules/asynchronous.py: run": "the order of an asynchronous pipeline's steps",
    "make/generate/serving/batching.py: run": "which passes a generated job has",
    "run/simulate/networks/transfers.py: run_alone": "one schedule on an idle network",
    "world/fleet/federated/links.py: _shared": "bytes of a round through a shared link",
    "world/fleet/federated/split.py: _round": "a round of split clients",
    "world/fleet/radio/run.py: _served": "requests of a stretch in the order of their arrival",
    "world/serve/transfers.py: through_ns": "bytes through a port whose rate changes",
    "decide/search/inferences.py: _inferences": "inferences of a chain, one after another",
    "decide/search/inferences.py: searched_again": "... and when it is searched again",
    "decide/search/links.py: arrival_ns": "a message over a link whose rate changes",
}
NO_MOMENTS = {
    "capture/ingest/allocations.py: _outermost",
    "analyse/what_if_kernels.py: edges_of_run", "capture/ingest/official/order.py: lines",
    "decide/search/cuts.py: _walked", "decide/search/placements/bound.py: _capacity",
    "decide/search/spaces/shares.py: in_proportion", "decide/search/travel_kernels.py: travelled",
    "kernels/intervals.py: _time_by_mask", "make/generate/schedules/v.py: _fill",
    "run/replay/communication/player.py: play", "world/fleet/federated/presence.py: two_states",
    "world/fleet/services/stability.py: _late_after", "world/fleet/sharing/supply.py: _from_file",
}  # fmt: skip
"""`now` is a place on a path, a width, a time that was measured, or a row of a table there."""


def places(target: ast.expr) -> Iterator[tuple[str, bool]]:
    """Names that an assignment sets, and whether it is a field of a clock."""
    if isinstance(target, ast.Tuple):
        for one in target.elts:
            yield from places(one)
    elif isinstance(target, ast.Name):
        yield target.id, False
    elif isinstance(target, ast.Attribute):
        yield target.attr, isinstance(target.value, ast.Name) and target.value.id == "clock"


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.NamedExpr | ast.AugAssign | ast.For) else []


def sets_the_present(function: ast.FunctionDef) -> bool:
    inside = {id(n) for loop in ast.walk(function) if isinstance(loop, ast.While | ast.For) for n in ast.walk(loop)}
    return any(
        NOW.match(name) and (of_clock or id(node) in inside)
        for node in ast.walk(function)
        for target in targets(node)
        for name, of_clock in places(target)
    )


def found() -> set[str]:
    return {
        f"{path.relative_to(SRC)}: {function.name}"
        for path in sorted(SRC.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef) and sets_the_present(function)
    }


def test_four_loops_have_a_clock():
    assert len(CLOCKS) == 4
    known = {*CLOCKS, *ASKED, *PIECES, *NO_MOMENTS}
    assert found() - known == set(), "a new loop with a clock? make it an entity of the world, or say what it is"
    assert known - found() == set(), "not there any more"


def test_a_loop_over_events_is_found():
    text = "def go(events):\n    while events:\n        now_ns, what = events.pop()\n        what(now_ns)\n"
    other = "def go(events):\n    now_ns = 0\n    for event in events:\n        event(now_ns)\n"
    assert [sets_the_present(ast.parse(one).body[0]) for one in (text, other)] == [True, False]
