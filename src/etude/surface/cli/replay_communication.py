from etude.steps.asked import replay_communication as asked
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "replay communication",
        asked.ReplayCommunication,
        asked.communication_inputs,
        asked.communication_played,
        record=asked.communication_record,
        reads=asked.collectives_played,
        says=asked.communication_lines,
        code=asked.communication_code,
    ),
)
