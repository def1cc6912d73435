"""Measured steps: rows of tables as models and plans, what a stack assumes, stacks fitted to them."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.predict.measured.calibration import Calibrated as Calibrated
    from etude.predict.measured.calibration import calibrate as calibrate
    from etude.predict.measured.calibration import calibrate_run as calibrate_run
    from etude.predict.measured.recipes import Said as Said
    from etude.predict.measured.recipes import completed as completed
    from etude.predict.measured.rows import predict_rows as predict_rows
    from etude.predict.measured.rows import read_rows as read_rows

__getattr__ = face(__name__)
