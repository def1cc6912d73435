"""Parses the text of limits."""

from collections.abc import Mapping

from etude.base.grammar import line, pairs

TIMES = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}
EXAMPLE = "ttft=1s,tpot=50ms, or chat:ttft=1s;batch:latency=60s"


def parse_limits(text: str) -> dict[str, dict[str, float]]:
    """Seconds by tier and time; the empty name is for all other tiers."""
    found: dict[str, dict[str, float]] = {"": {}}
    for group in line(text, "--slo", EXAMPLE).split(";") if text.strip() else ():
        tier, limits = group.cut(":", last=True)
        if limits is not None and not tier.text:
            raise tier.wrong("the name of a tier is missing")
        own = found.setdefault(tier.text if limits is not None else "", {})
        for name, value in pairs((limits or group).split(","), TIMES).items():
            own[TIMES[name]] = value.positive("time", f"leave `{name}` out for no limit") / 1e9
    return found


def least(limits: Mapping[str, Mapping[str, float]], name: str) -> float:
    """The shortest limit of a metric among tiers, in seconds; 0: none."""
    return min((of[name] for of in limits.values() if name in of), default=0.0)
