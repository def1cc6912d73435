"""A job that serves: `generate serve` and `predict serve`."""

from typing import Any

from etude.base.shapes import names_in
from etude.steps.asked.job_out import generated_record
from etude.surface.verb import Verb
from etude.world.serve.asked import job

SERVED = names_in("""
    makespan_ns step_time_ns mfu tokens_per_s tokens_per_s_per_gpu ttft_ns tpot_ns latency_ns memory_peak_bytes
""")
"""Predicted figures of `etude predict serve`."""

GENERATE: Verb[Any, Any, Any] = Verb(
    "generate serve",
    job.GenerateServe,
    job.generate_inputs,
    job.run_generate,
    record=generated_record,
    reads=job.readable_job,
)
PREDICT: Verb[Any, Any, Any] = Verb(
    "predict serve",
    job.PredictServe,
    job.predict_inputs,
    job.run_predict,
    reads=job.readable_times,
    unknown=dict.fromkeys(SERVED, "served requests by the device alone, without an engine (`etude serve` has one)"),
)
