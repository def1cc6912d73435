"""`--ranks 0-3,7` of commands that show some ranks of a job."""

from typing import TYPE_CHECKING

from etude.base.errors import UsageError

if TYPE_CHECKING:
    from etude.model.job import Job

RANKS_HELP = "only these ranks: `0-3,7`"


def ranks_of(text: str, job: "Job") -> list[int] | None:
    """Ranks in ascending order; None where nothing is said. Ranks that are not there are refused."""
    if not text:
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--ranks: `{part}` is not a rank or a range", hint="0-3,7")
        if dash and int(last) - int(first) > job.world_size:
            raise UsageError(f"--ranks: `{part}` is beyond the job's {job.world_size:,} ranks")
        found.update(range(int(first), int(last if dash else first) + 1))
    for rank in sorted(found):
        job.index(rank)
    return sorted(found)
