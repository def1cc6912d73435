from etude.steps.asked.astra import SimulateAstra, astra_inputs, astra_record, astra_result, no_result
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="simulate astra", asks=SimulateAstra, inputs=astra_inputs, run=astra_result, record=astra_record,
        reads=lambda found: astra_record(found)["ranks"], refusal=no_result,
    ),
)  # fmt: skip
