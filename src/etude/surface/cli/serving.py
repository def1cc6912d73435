"""A job that serves: `generate serve` and `predict serve`."""

from typing import Any

from etude.steps.asked.job_out import generated_record
from etude.surface.verb import Verb
from etude.world.serve.asked import job

GENERATE: Verb[Any, Any, Any] = Verb(
    "generate serve",
    job.GenerateServe,
    job.generate_inputs,
    job.run_generate,
    record=generated_record,
    reads=job.readable_job,
)
PREDICT: Verb[Any, Any, Any] = Verb(
    "predict serve", job.PredictServe, job.predict_inputs, job.run_predict, reads=job.readable_times
)
