from etude.steps.asked.measured import Calibrate, calibrate_inputs, calibrated, calibrated_figures, calibrated_record
from etude.surface.verb import Verb

VERBS = (
    Verb("calibrate", Calibrate, calibrate_inputs, calibrated, record=calibrated_record, reads=calibrated_figures),
)
