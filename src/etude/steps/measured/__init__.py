"""Measured steps: rows of tables as models and plans, what a stack assumes, stacks fitted to them."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.measured.calibration import Calibrated as Calibrated
    from etude.steps.measured.calibration import calibrate as calibrate
    from etude.steps.measured.calibration import calibrate_run as calibrate_run
    from etude.steps.measured.gpus import gpu_system as gpu_system
    from etude.steps.measured.recipes import RunFacts as RunFacts
    from etude.steps.measured.recipes import completed as completed
    from etude.steps.measured.rows import predict_rows as predict_rows
    from etude.steps.measured.rows import read_rows as read_rows

__getattr__ = face(__name__)
