from etude.steps.asked.measured import (
    Calibrate,
    calibrate_inputs,
    calibrated,
    calibrated_figures,
    calibrated_record,
)
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="calibrate", asks=Calibrate, inputs=calibrate_inputs, run=calibrated, record=calibrated_record,
        reads=calibrated_figures,
    ),
)  # fmt: skip
