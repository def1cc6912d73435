from etude.surface.verb import Verb
from etude.tell.archive.asked import runs

VERBS = (
    Verb("archive add", runs.AddRuns, runs.add_inputs, runs.add, reads=runs.nothing),
    Verb("archive query", runs.QueryRuns, runs.query_inputs, runs.query),
    Verb("archive list", runs.ListRuns, runs.list_inputs, runs.query),
    Verb("archive changes", runs.ChangedRuns, runs.changes_inputs, runs.changes),
    Verb("archive compact", runs.CompactArchive, runs.compact_inputs, runs.compact, reads=runs.nothing),
)
