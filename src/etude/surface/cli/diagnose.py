from typing import Any

from etude.steps.asked.diagnose import Diagnose, diagnose_inputs, diagnose_record, diagnose_table
from etude.surface.verb import Verb


def reads(found: Any) -> str | None:
    """What to do next: each finding as a sentence with its confidence, an action, and the command that shows more."""
    from etude.analyse.next_steps import next_step

    lines = [
        f"{number}. {one.words} (confidence {one.confidence:.0%})\n   {next_step(one)}\n   {found.command(one)}"
        for number, one in enumerate(found.findings[: found.shown], 1)
    ]
    left = len(found.findings) - found.shown
    if left > 0:
        lines.append(f"{left} more; --top 0 shows all")
    return "\n".join(lines) or None


VERBS = (
    Verb(
        "diagnose",
        Diagnose,
        diagnose_inputs,
        lambda given: given.run(),
        record=diagnose_record,
        table=diagnose_table,
        reads=reads,
        tool=True,
    ),
)
