from functools import partial

from etude.decide.study import asked
from etude.surface.cli.executing import executed, options_of
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "study run",
        asked.RunStudy,
        asked.inputs,
        partial(asked.Running, execute=executed, options=options_of),
        record=asked.record,
        reads=asked.reads,
        code=asked.code,
    ),
    Verb("study list", asked.ListStudies, lambda asked: None, asked.listed),
    Verb("study show", asked.ShowStudy, asked.study_file, asked.text_of, reads=str),
    Verb("study new", asked.NewStudy, asked.place_of, asked.new, reads=lambda path: None),
)
