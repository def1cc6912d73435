from etude.steps.asked.astra import SimulateAstra, astra_inputs, astra_record, astra_result, no_result
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "simulate astra",
        SimulateAstra,
        astra_inputs,
        astra_result,
        record=astra_record,
        reads=lambda found: astra_record(found)["ranks"],
        refusal=no_result,
    ),
)
