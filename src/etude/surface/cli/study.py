from functools import partial

from etude.decide.study import asked
from etude.surface.cli.executing import executed, options_of
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="study run", asks=asked.RunStudy, inputs=asked.inputs, record=asked.record, reads=asked.reads,
        run=partial(asked.Running, execute=executed, options=options_of), code=asked.code,
    ),
    Verb(name="study list", asks=asked.ListStudies, inputs=lambda asked: None, run=asked.listed),
    Verb(name="study show", asks=asked.ShowStudy, inputs=asked.study_file, run=asked.text_of, reads=str),
    Verb(name="study new", asks=asked.NewStudy, inputs=asked.place_of, run=asked.new, reads=lambda path: None),
)  # fmt: skip
