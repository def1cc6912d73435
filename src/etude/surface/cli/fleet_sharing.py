"""`etude fleet CLUSTER --jobs FILE`, `etude fleet POOL.yaml`: what is shown of jobs on one cluster."""

from typing import TYPE_CHECKING, Any

from etude.surface.cli.output import emit

if TYPE_CHECKING:
    from etude.surface.api.fleets import SharedFleet


def show_jobs(found: "SharedFleet", *, json: bool) -> None:
    record = found.figures
    emit(record | {"jobs": found.tables["jobs"]} if json else _shown(record), json=json)


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    def spread(name: str) -> str | None:
        of = record[name]
        return of and f"mean {of['mean']:,.1f} s, p50 {of['p50']:,.1f} s, p99 {of['p99']:,.1f} s"

    rows = {
        "jobs": f"{record['jobs_done']:,} on {record['devices']:,} devices in {record['duration_s'] / 86400:,.2f} days",
        "devices in use": f"{record['utilisation']:.2%}",
        "waiting": spread("wait_s"),
        "recorded for it": spread("recorded_wait_s"),
        "from arrival to end": spread("jct_s"),
        "preemptions": record["interruptions"],
        "restarting, lost work": f"{record['lost_s']['restart'] / record['duration_s']:.2%}, "
        f"{record['lost_s']['redo'] / record['duration_s']:.2%} of the device time",
        "fairness of slowdowns": f"{record['fairness']:.3f}",
    }
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.0f} dollars"
    return {name: value for name, value in rows.items() if value is not None}
