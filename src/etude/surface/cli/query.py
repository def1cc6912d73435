from etude.surface.cli.output import emit
from etude.surface.verb import Verb
from etude.tell.archive.asked.query import Query, answer, inputs, run

VERBS = (
    Verb(
        "query",
        Query,
        inputs,
        run,
        record=lambda found: found[0],
        show=lambda found: emit(found[0]),
        tool=True,
        answer=answer,
        tool_defaults={"top": 200, "seconds": 30.0},
    ),
)
