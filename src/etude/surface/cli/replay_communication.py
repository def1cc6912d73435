from etude.steps.asked import replay_communication as asked
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="replay communication",
        asks=asked.ReplayCommunication,
        inputs=asked.communication_inputs,
        run=asked.communication_played,
        record=asked.communication_record,
        reads=asked.collectives_played,
        says=asked.communication_lines,
        code=asked.communication_code,
    ),
)
