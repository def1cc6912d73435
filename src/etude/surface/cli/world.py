from etude.surface.verb import Verb
from etude.world.asked import run, window

VERBS = (
    Verb(
        "world run",
        run.RunWorld,
        run.world_inputs,
        run.run_world,
        record=lambda found: found.record,
        reads=run.readable,
    ),
    Verb(
        "world window",
        window.WorldWindow,
        window.window_inputs,
        window.write_window,
        record=lambda found: found.record,
        reads=window.readable,
    ),
)
