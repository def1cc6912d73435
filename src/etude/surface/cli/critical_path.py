from etude.steps.asked.critical_path import CriticalPath, answer, inputs, run, table
from etude.surface.verb import Verb

VERBS = (
    Verb("critical-path", CriticalPath, inputs, run, table=table, tool=True, answer=answer, tool_defaults={"top": 20}),
)
