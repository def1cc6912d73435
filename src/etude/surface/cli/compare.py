from etude.surface.verb import Verb
from etude.tell.report.asked.compare import Compare, answer, code, inputs, reads, record, run, table

VERBS = (
    Verb(
        "compare",
        Compare,
        inputs,
        run,
        record=record,
        table=table,
        reads=reads,
        code=code,
        tool=True,
        answer=answer,
        tool_defaults={"top": 20},
    ),
)
