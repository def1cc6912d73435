from typing import Any

from etude.steps.asked.measured import PredictRows, predicted_rows, rows_inputs, rows_table
from etude.steps.asked.predict import Predict, predict_figures, predict_inputs, predict_record, predicted
from etude.steps.asked.program import PredictProgram, predicted_program, program_figures, program_inputs
from etude.surface.cli import sections, serving
from etude.surface.cli.generate import by_mode
from etude.surface.verb import Verb


def meant(args: list[str]) -> tuple[str, list[str]]:
    """`predict MODEL --serve` is `predict serve MODEL`; `--sections FILE`, `--rows FILE` and `--program COMMAND` are
    verbs, too."""
    if any(arg.partition("=")[0] == "--program" for arg in args):
        return "predict program", args
    if any(arg.partition("=")[0] == "--rows" for arg in args):
        return "predict rows", args
    return by_mode("predict", args)


VERBS: tuple[Verb[Any, Any, Any], ...] = (
    Verb("predict", Predict, predict_inputs, predicted, record=predict_record, reads=predict_figures, tool=True),
    serving.PREDICT,
    sections.PREDICT,
    Verb(
        "predict program",
        PredictProgram,
        program_inputs,
        predicted_program,
        record=lambda found: found.record(),
        reads=program_figures,
        tool=False,
    ),
    Verb(
        "predict rows", PredictRows, rows_inputs, predicted_rows, record=lambda found: {"rows": found}, reads=rows_table
    ),
)
