from etude.surface.verb import Verb
from etude.world.asked import run, window

VERBS = (
    Verb(
        name="world run",
        asks=run.RunWorld,
        inputs=run.world_inputs,
        run=run.run_world,
        record=lambda found: found.record,
        reads=run.readable,
    ),
    Verb(
        name="world window",
        asks=window.WorldWindow,
        inputs=window.window_inputs,
        run=window.write_window,
        record=lambda found: found.record,
        reads=window.readable,
    ),
)
