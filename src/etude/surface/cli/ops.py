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


VERBS = (
    Verb(name="ops missing", asks=MissingKeys, inputs=lambda asked: KeysWanted.of(asked, asked.device),
         run=KeysWanted.needs, record=lambda found: found.summary(), show=show_missing),
    Verb(name="ops measure", asks=Measure, inputs=measure_inputs, run=measured, show=show_measured),
    Verb(name="ops show", asks=ShowPoints, inputs=points_inputs, run=points_of),
    Verb(name="ops add", asks=AddPoints, inputs=lambda asked: (Path(asked.db), tuple(map(Path, asked.points))),
         run=add_points, show=nothing),
    Verb(name="ops import", asks=ImportPoints, inputs=lambda asked: (Path(asked.db), Path(asked.path)),
         run=import_points, show=nothing),
    Verb(name="ops contend", asks=Contend, inputs=contend_inputs, run=contended, record=rows_record,
         table=contend_table),
    Verb(name="ops offload", asks=Offload, inputs=offload_inputs, run=offloaded, record=rows_record,
         table=offload_table),
    Verb(name="ops graph", asks=GraphNetwork, inputs=graph_inputs, run=graph_passed, record=graph_record,
         reads=graph_figures),
    Verb(name="ops place", asks=PlaceModel, inputs=place_inputs, run=placed, reads=placed_rows),
    Verb(name="ops kernels", asks=ProductKernels, inputs=kernel_inputs, run=kernel_rows, record=rows_record,
         table=kernel_table),
)  # fmt: skip
