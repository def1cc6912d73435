from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.talk import say
from etude.cost.asked import (
    Contend,
    ProductKernels,
    contend_inputs,
    contend_table,
    contended,
    kernel_inputs,
    kernel_rows,
    kernel_table,
)
from etude.cost.tiers.asked import (
    GraphNetwork,
    Offload,
    graph_figures,
    graph_inputs,
    graph_passed,
    graph_record,
    offload_inputs,
    offload_table,
    offloaded,
)
from etude.steps.operators.asked.databases import (
    AddPoints,
    ImportPoints,
    ShowPoints,
    add_points,
    import_points,
    points_inputs,
    points_of,
)
from etude.steps.operators.asked.keys import KeysWanted, Measure, MissingKeys, measure_inputs, measured
from etude.steps.placing.asked import PlaceModel, place_inputs, placed, placed_rows
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.steps.operators import Needs


def show_missing(found: "Needs") -> None:
    numbers = found.summary()
    emit(found.by_op())
    say(
        f"{numbers['keys']:,} keys of {len(found.uses)} models and splits, {numbers['distinct']:,} distinct: "
        f"{numbers['saved_fraction']:.1%} saved"
    )
    say(
        f"{numbers['missing']:,} keys and {numbers['points_missing']:,} of {numbers['points']:,} points are missing; "
        f"measuring them takes about {numbers['cost_s']:,.0f} s"
    )


def show_measured(found: dict[str, Any]) -> None:
    """What was measured; a plan was said to be written."""
    if "plan" not in found:
        emit(found)


def nothing(found: Any) -> None:
    """All of it was said."""


def rows_record(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": found}


ROWS = {"rows": "a row: `etude score` compares such rows with measured ones"}
GRAPH = {"time_ns": "a graph network whose features are in storage"}
PLACED = {"rooms": "a model of which the host holds a part"}
"""Predicted figures of which nothing is known."""

VERBS = (
    Verb(
        "ops missing",
        MissingKeys,
        lambda asked: KeysWanted.of(asked, asked.device),
        KeysWanted.needs,
        record=lambda found: found.summary(),
        show=show_missing,
        unknown={"cost_s": "the time of measuring"},
    ),
    Verb("ops measure", Measure, measure_inputs, measured, show=show_measured),
    Verb("ops show", ShowPoints, points_inputs, points_of),
    Verb(
        "ops add", AddPoints, lambda asked: (Path(asked.db), tuple(map(Path, asked.points))), add_points, show=nothing
    ),
    Verb("ops import", ImportPoints, lambda asked: (Path(asked.db), Path(asked.path)), import_points, show=nothing),
    Verb("ops contend", Contend, contend_inputs, contended, record=rows_record, table=contend_table, unknown=ROWS),
    Verb("ops offload", Offload, offload_inputs, offloaded, record=rows_record, table=offload_table, unknown=ROWS),
    Verb(
        "ops graph", GraphNetwork, graph_inputs, graph_passed, record=graph_record, reads=graph_figures, unknown=GRAPH
    ),
    Verb("ops place", PlaceModel, place_inputs, placed, reads=placed_rows, unknown=PLACED),
    Verb(
        "ops kernels", ProductKernels, kernel_inputs, kernel_rows, record=rows_record, table=kernel_table, unknown=ROWS
    ),
)
