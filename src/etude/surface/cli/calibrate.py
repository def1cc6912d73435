from etude.steps.asked.measured import (
    Calibrate,
    calibrate_inputs,
    calibrated,
    calibrated_figures,
    calibrated_record,
)
from etude.surface.verb import Verb
from etude.world.serve.asked import calibrate as engine

VERBS = (
    Verb(
        name="calibrate", asks=Calibrate, inputs=calibrate_inputs, run=calibrated, record=calibrated_record,
        reads=calibrated_figures,
    ),
    Verb(
        name="calibrate engine", asks=engine.CalibrateEngine, inputs=engine.calibration_inputs,
        run=engine.run_calibration, record=engine.calibration_record, reads=engine.calibration_text,
    ),
)  # fmt: skip
