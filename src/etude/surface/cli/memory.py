from etude.steps.asked.memory import MemoryOf, memory_inputs
from etude.surface.verb import Verb

VERBS = (Verb("memory", MemoryOf, memory_inputs, lambda given: given.run(), tool=True),)
