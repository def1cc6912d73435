from etude.steps.asked.metrics import Metrics, metrics_inputs, metrics_of, metrics_table
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="metrics", asks=Metrics, inputs=metrics_inputs, run=metrics_of, record=lambda found: found[0],
        table=metrics_table, reads=metrics_table, tool=True,
    ),
)  # fmt: skip
