"""Figures from the energy of a run: kWh, carbon, money, and joules per step, token and request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.analyse.energy import Energy, PowerCurve
from etude.machine.regions import Region, availability, hourly_price
from etude.machine.system import Device


def energy_figures(
    found: Energy,
    *,
    curve: PowerCurve | None = None,
    region: Region | None = None,
    kinds: Sequence[tuple[Device, int]] = (),
    steps: int = 0,
    tokens: int = 0,
    requests: int = 0,
) -> dict[str, Any]:
    """Figures of the machines, with `curve` instead of the run's own if it was smoothed; `kwh`, `carbon_g` and `cost`
    are for the site; `kinds` are the devices, and how many of each. Unknown figures are None."""
    power = curve or found.curve
    joules = power.energy_j
    site = region or Region()
    available = availability(kinds, region)
    span_h, price = power.span_ns / 3.6e12, hourly_price(kinds)
    return {
        "energy_j": joules,
        "mean_w": power.mean_w,
        "peak_w": power.peak_w,
        "by_class": dict(sorted(found.by_class.items(), key=lambda item: -item[1])),
        "per_step_j": joules / steps if steps else None,
        "per_token_j": joules / tokens if tokens else None,
        "per_request_j": joules / requests if requests else None,
        "carbon_g": site.carbon_g(joules),
        "cost": site.cost(joules),
        "kwh": site.kwh(joules),
        "device_hours": span_h * found.ranks,
        "device_cost": None if price is None else span_h * price,
        "available": available,
        "expected_time_ns": power.span_ns / available if available else None,
        "time_ns": power.span_ns,
        "ranks": found.ranks,
        "device_mean_w": power.mean_w / found.ranks if found.ranks else None,
        "device_highest_w": _highest_w(found, curve),
        "swing_w": power.swing_w,
        "ramp_w_per_s": power.ramp_w_per_s(),
        "assumed": [f"power of {name}: derived from its limit" for name in found.assumed],
    }


def _highest_w(found: Energy, curve: PowerCurve | None) -> float:
    """Highest power of a device: at least its part of a smoothed curve, which a floor raises."""
    return (
        found.highest_w if curve is None or not found.ranks else max(found.highest_w, curve.regulated_w / found.ranks)
    )
