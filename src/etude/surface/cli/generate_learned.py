from etude.steps.asked import learning
from etude.steps.asked.job_out import made_figures, made_record
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="generate learned", asks=learning.GenerateLearned, inputs=learning.learned_inputs,
        run=learning.run_learned, record=made_record, reads=made_figures,
    ),
)  # fmt: skip
