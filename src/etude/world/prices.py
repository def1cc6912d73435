"""What devices cost by the hour, and what their holders pay."""

from __future__ import annotations

from collections.abc import Sequence

from etude.base.files import csv_rows
from etude.world.devices import Holding
from etude.world.fleet.sharing.supply import DevicePrices, read_steps


def paid(history: list[Holding], prices: DevicePrices, until_ns: int) -> float:
    """Dollars for devices that were held until a moment."""
    ends = [*(row.time_ns for row in history[1:]), until_ns]
    return sum(
        row.devices * prices.paid(min(row.time_ns, until_ns), min(end, until_ns))
        for row, end in zip(history, ends, strict=True)
    )


def read_prices(path: str, regions: Sequence[str] = ()) -> list[DevicePrices]:
    """A CSV with `time_s` and `price`, or a column for each of several regions: the prices of each region, or those of
    the one place. Raises UsageError."""
    columns, _ = csv_rows(path)
    names = tuple(regions) if len(regions) > 1 and "price" not in columns else ("price",)
    time_ns, of = read_steps(path, names)
    return [DevicePrices(time_ns, of[name]) for name in names] * (len(regions) if len(names) < len(regions) else 1)
