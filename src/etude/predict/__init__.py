"""Predictions: a generated job, simulated. A search is many of them."""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.predict.bounds import least_step_time_ns as least_step_time_ns
    from etude.predict.serving import predict_serving as predict_serving
    from etude.predict.similarity import likeness as likeness
    from etude.predict.step import Prediction as Prediction
    from etude.predict.step import check_memory as check_memory
    from etude.predict.step import grown as grown
    from etude.predict.step import predict as predict
    from etude.predict.step import step_time as step_time

__getattr__ = face(__name__)
verb(__name__)
