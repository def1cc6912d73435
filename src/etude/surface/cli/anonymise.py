from etude.steps.asked.anonymise import Anonymise, inputs, run
from etude.surface.verb import Verb

VERBS = (Verb("anonymise", Anonymise, inputs, run),)
