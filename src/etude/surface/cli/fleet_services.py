"""`etude fleet EDGE.yaml` where the file has `services` or a `backbone`: small networks or tasks on one device."""

from typing import TYPE_CHECKING, Any

from etude.surface.cli.output import emit, say

if TYPE_CHECKING:
    from etude.surface.api.fleets import SharedFleet


def show_services(found: "SharedFleet", *, json: bool) -> None:
    record = found.figures
    if json:
        emit(record, json=True)
        return
    emit([_row(one) for one in record["services"]])
    say(
        f"{record['policy']}: {record['missed']:.2%} of {record['requests']:,} late, latency p95 "
        f"{record['latency_s']['p95'] * 1e3:,.1f} ms, device in use {record['utilisation']:.1%}"
    )


def show_backbone(found: "SharedFleet", *, json: bool) -> None:
    record = found.figures
    if json:
        emit(record, json=True)
        return
    emit([
        {"task": one["name"], "weight": one["weight"], "requests": one["requests"], **_in_ms(one["latency_s"])}
        for one in record["tasks"]
    ])  # fmt: skip
    say(
        f"{record['policy']}: latency p95 {record['latency_s']['p95'] * 1e3:,.1f} ms, batches of "
        f"{record['batch']:.1f}, device in use {record['utilisation']:.1%}, memory for {record['hosted']:,} tasks"
    )


def _in_ms(spread: dict[str, float] | None) -> dict[str, Any]:
    return {f"{at} ms": spread and round(spread[at] * 1e3, 2) for at in ("mean", "p95")}


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "service": one["name"],
        "requests": one["requests"],
        "late": f"{one['missed']:.2%}",
        **_in_ms(one["latency_s"]),
        "exits taken": " ".join(str(count) for count in one["exits"]),
    }
