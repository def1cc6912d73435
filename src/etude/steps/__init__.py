"""Predictions: a generated job, simulated. A search is many of them."""

from typing import TYPE_CHECKING

from etude.base.faces import face, verb

if TYPE_CHECKING:
    from etude.steps.bounds import least_step_time_ns as least_step_time_ns
    from etude.steps.serving import predict_serving as predict_serving
    from etude.steps.similarity import likeness as likeness
    from etude.steps.step import Prediction as Prediction
    from etude.steps.step import check_memory as check_memory
    from etude.steps.step import grown as grown
    from etude.steps.step import predict as predict
    from etude.steps.step import step_time as step_time

__getattr__ = face(__name__)
verb(__name__)
