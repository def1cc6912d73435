from etude.steps.asked.memory import MemoryOf, memory_inputs
from etude.surface.verb import Verb

VERBS = (Verb(name="memory", asks=MemoryOf, inputs=memory_inputs, run=lambda given: given.run(), tool=True),)
