"""A job that serves: `generate serve` and `predict serve`."""

from typing import Any

from etude.steps.asked.job_out import generated_record
from etude.surface.verb import Verb
from etude.world.serve.asked import job

GENERATE: Verb[Any, Any, Any] = Verb(
    name="generate serve", asks=job.GenerateServe, inputs=job.generate_inputs, run=job.run_generate,
    record=generated_record, reads=job.readable_job,
)  # fmt: skip
PREDICT: Verb[Any, Any, Any] = Verb(
    name="predict serve", asks=job.PredictServe, inputs=job.predict_inputs, run=job.run_predict,
    reads=job.readable_times,
)  # fmt: skip
