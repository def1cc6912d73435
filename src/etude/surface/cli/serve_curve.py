"""`etude serve --rate 1..40`: a stream at several rates, and where it stops to hold."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.world.serve import Served

CURVE = ("requests", "goodput_rps", "within_limits", "output_tokens_per_s", "busy", "energy_j")


def holds_rps(found: list[dict[str, Any]], part: float) -> float | None:
    """The highest rate before the first at which fewer requests than this part are within the limits."""
    held = None
    for one in found:
        if one["within_limits"] < part:
            break
        held = float(one["rate_rps"])
    return held


def curve_of(points: list[tuple[float, "Served"]], limits: dict[str, dict[str, float]], part: float) -> dict[str, Any]:
    """What a folder keeps of all rates: `rates` and `holds_rps`."""
    from etude.world.serve import summary

    rates = []
    for rate, served in points:
        one = summary(served, limits=limits)
        times = {name: {key: one[name][key] for key in ("p50", "p99")} for name in ("ttft_s", "tpot_s") if one[name]}
        rates.append({"rate_rps": rate, **{name: one[name] for name in CURVE}, **times})
    return {"rates": rates, "holds_rps": holds_rps(rates, part)}


def shown_point(curve: dict[str, Any]) -> int:
    """Whose stream is shown: that of the highest rate that holds, or of the lowest."""
    rates = [one["rate_rps"] for one in curve["rates"]]
    return rates.index(curve["holds_rps"]) if curve["holds_rps"] in rates else 0
