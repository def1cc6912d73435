from etude.steps.asked.idle import Idle, inputs
from etude.steps.asked.runs import Analysed, record_of, table_of
from etude.surface.verb import Verb

VERBS = (Verb("idle", Idle, inputs, Analysed.with_figures, record=record_of, table=table_of, tool=True),)
