"""A job of several models: `generate sections` and `predict sections`."""

from collections.abc import Callable
from typing import Any

from etude.steps.asked import sections
from etude.steps.asked.job_out import generated_record
from etude.surface.cli.output import emit
from etude.surface.verb import Verb


def each_of(reads: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], None]:
    """Prints records and tables, one below the other."""

    def show(result: Any) -> None:
        for one in reads(result):
            emit(one)

    return show


GENERATE: Verb[Any, Any, Any] = Verb(
    "generate sections",
    sections.GenerateSections,
    sections.generate_inputs,
    sections.run_generate,
    record=generated_record,
    show=each_of(sections.readable_job),
)
PREDICT: Verb[Any, Any, Any] = Verb(
    "predict sections",
    sections.PredictSections,
    sections.predict_inputs,
    sections.run_predict,
    record=lambda found: found.summary(),
    show=each_of(sections.readable_step),
    unknown=dict.fromkeys(
        ("step_time_ns", "samples_per_s", "tokens_per_s_per_gpu", "mfu", "memory_peak_bytes"),
        "a step of several models",
    ),
)
