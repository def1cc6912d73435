"""What devices cost by the hour, and what their holders pay."""

from __future__ import annotations

from etude.world.devices import Holding
from etude.world.fleet.sharing.supply import DevicePrices, read_steps


def paid(history: list[Holding], prices: DevicePrices, until_ns: int) -> float:
    """Dollars for devices that were held until a moment."""
    ends = [*(row.time_ns for row in history[1:]), until_ns]
    return sum(
        row.devices * prices.paid(min(row.time_ns, until_ns), min(end, until_ns))
        for row, end in zip(history, ends, strict=True)
    )


def read_prices(path: str) -> DevicePrices:
    """A CSV with `time_s` and `price`. Raises UsageError."""
    time_ns, of = read_steps(path, ("price",))
    return DevicePrices(time_ns, of["price"])
