from etude.steps.asked import learning
from etude.steps.asked.job_out import made_figures, made_record
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "generate learned",
        learning.GenerateLearned,
        learning.learned_inputs,
        learning.run_learned,
        record=made_record,
        reads=made_figures,
    ),
)
