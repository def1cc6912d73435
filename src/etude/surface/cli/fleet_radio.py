"""`etude fleet AIRAN.yaml` where the file has `radio`: radio functions and AI services on one set of nodes."""

from typing import TYPE_CHECKING, Any

from etude.surface.cli.output import emit, say

if TYPE_CHECKING:
    from etude.surface.api.fleets import SharedFleet


def show_radio(found: "SharedFleet", *, json: bool) -> None:
    record = found.figures
    if json:
        emit(record, json=True)
        return
    emit([_row(one) for one in record["members"]])
    told = ", ".join(f"{name} {value}" for name, value in _parts(record).items())
    say(f"{record['policy']}: {told}")


def show_loads(found: "list[SharedFleet]", *, json: bool) -> None:
    """The same at several loads."""
    records = [one.figures for one in found]
    emit(records if json else [{"load": f"{one['load']:.3g}", **_parts(one)} for one in records], json=json)


def _parts(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "fulfilled": f"{record['fulfilled']:.1%}", "radio": f"{record['radio_fulfilled']:.1%}",
        "ai": f"{record['ai_fulfilled']:.1%}", "moves": record["moves"],
    }  # fmt: skip


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "member": one["name"], "kind": one["kind"], "asked": f"{one['asked']:,}", "on time": f"{one['fulfilled']:.2%}",
        "moves": one["moves"],
    }  # fmt: skip
