from etude.steps.asked.memory import Memory, memory_inputs
from etude.surface.verb import Verb

VERBS = (Verb(name="memory", asks=Memory, inputs=memory_inputs, run=lambda given: given.run(), tool=True),)
