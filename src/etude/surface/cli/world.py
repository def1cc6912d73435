from etude.surface.verb import Verb
from etude.world.asked import run

VERBS = (
    Verb(
        name="world run",
        asks=run.RunWorld,
        inputs=run.world_inputs,
        run=run.run_world,
        record=lambda found: found.record,
        reads=run.readable,
    ),
)
