from etude.steps.asked.metrics import Metrics, metrics_inputs, metrics_of, metrics_record, metrics_table
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "metrics",
        Metrics,
        metrics_inputs,
        metrics_of,
        record=metrics_record,
        table=metrics_table,
        reads=metrics_table,
        tool=True,
    ),
)
