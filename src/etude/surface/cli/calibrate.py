from etude.steps.asked.measured import Calibrate, calibrate_inputs, calibrated, calibrated_figures, calibrated_record
from etude.surface.verb import Verb
from etude.world.serve.asked import calibrate as engine

VERBS = (
    Verb("calibrate", Calibrate, calibrate_inputs, calibrated, record=calibrated_record, reads=calibrated_figures),
    Verb(
        "calibrate engine",
        engine.CalibrateEngine,
        engine.calibration_inputs,
        engine.run_calibration,
        record=engine.calibration_record,
        reads=engine.calibration_text,
    ),
)
