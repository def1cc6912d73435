"""Parses the text of limits."""

from collections.abc import Mapping

from etude.base.errors import UsageError
from etude.base.units import parse_time

TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}


def parse_limits(text: str) -> dict[str, dict[str, float]]:
    """Seconds by tier and time; the empty name is for all other tiers."""
    hint = f"ttft=1s,tpot=50ms, or chat:ttft=1s;batch:latency=60s; known: {', '.join(TIMES)}"
    found: dict[str, dict[str, float]] = {"": {}}
    for group in filter(None, text.split(";")):
        tier, colon, limits = group.rpartition(":")
        for part in filter(None, limits.split(",")):
            name, equals, value = part.strip().partition("=")
            if not equals or name not in TIMES or (colon and not tier):
                raise UsageError(f"--slo: `{part}`", hint=hint)
            found.setdefault(tier.strip(), {})[TIMES[name]] = parse_time(value) / 1e9
    return found


def least(limits: Mapping[str, Mapping[str, float]], name: str) -> float:
    """The shortest limit of a metric among tiers, in seconds; 0: none."""
    return min((of[name] for of in limits.values() if name in of), default=0.0)
