from etude.surface.verb import Verb
from etude.tell.archive.asked import runs

VERBS = (
    Verb(name="archive add", asks=runs.AddRuns, inputs=runs.add_inputs, run=runs.add, reads=runs.nothing),
    Verb(name="archive query", asks=runs.QueryRuns, inputs=runs.query_inputs, run=runs.query),
    Verb(name="archive list", asks=runs.ListRuns, inputs=runs.list_inputs, run=runs.query),
    Verb(
        name="archive compact",
        asks=runs.CompactArchive,
        inputs=runs.compact_inputs,
        run=runs.compact,
        reads=runs.nothing,
    ),
)
