"""`etude fleet AIRAN.yaml` where the file has `radio`: radio functions and AI services on one set of nodes."""

from pathlib import Path
from typing import Any

from etude.cli.output import emit, say
from etude.errors import UsageError

RATES = 8
"""Loads that a range is cut into."""


def shared_with_radio(
    path: str, policy: str, migrate: str, load: str, out: Path | None, *, seed: int, force: bool, json: bool
) -> int:
    from etude.fleet import write_fleet
    from etude.fleet.radio import radio_record, radio_tables, read_radio, share_radio

    wanted = loads_of(load)
    if len(wanted) > 1 and out is not None:
        raise UsageError("-o needs a single load", where=path, hint="--load 1.0")
    ran = [share_radio(read_radio(path, policy=policy, migrate=migrate, load=one), seed=seed) for one in wanted]
    records = [radio_record(one) for one in ran]
    record = records[0]
    if out is not None:
        asked = {"pool": path, "policy": record["policy"], "migrate": record["migrate"], "seed": seed}
        write_fleet(radio_tables(ran[0], record), record | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    if json:
        emit(record if len(records) == 1 else records, json=True)
    elif len(records) > 1:
        emit([{"load": f"{one['load']:.3g}", **_parts(one)} for one in records])
    else:
        emit([_row(one) for one in record["members"]])
        told = ", ".join(f"{name} {value}" for name, value in _parts(record).items())
        say(f"{record['policy']}: {told}")
    return 0


def loads_of(text: str) -> list[float]:
    """`0.8`, or `0.5..1.2` in eight steps; 0: as the file says."""
    low, dots, high = text.partition("..")
    try:
        ends = [float(low or 0), float(high)] if dots else [float(low or 0)]
    except ValueError:
        ends = []
    if not ends or (text and min(ends) <= 0) or ends != sorted(ends) or max(ends) > 1e6:
        raise UsageError(f"--load: `{text}` is not a load or a range of loads", hint="--load 0.5..1.2")
    if len(ends) == 1 or ends[0] == ends[1]:
        return ends[:1]
    return [ends[0] + (ends[1] - ends[0]) * k / (RATES - 1) for k in range(RATES)]


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
