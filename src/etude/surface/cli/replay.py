from etude.steps.asked.replay import Replay, replay_inputs, replay_lines, replay_record, replayed
from etude.surface.verb import Verb


def meant(args: list[str]) -> "str | tuple[str, list[str]]":
    """`replay job/ --only communication` is `replay communication job/`."""
    for at, word in enumerate(args):
        if word == "--only=communication" or args[at : at + 2] == ["--only", "communication"]:
            return "replay communication", [*args[:at], *args[at + (1 if "=" in word else 2) :]]
    return ""


VERBS = (
    Verb(
        "replay",
        Replay,
        replay_inputs,
        replayed,
        record=replay_record,
        reads=lambda found: found.readable,
        says=replay_lines,
    ),
)
