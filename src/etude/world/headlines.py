"""What one looks at first of a workload, from its figures: for the line of a command and the card of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Headline(NamedTuple):
    value: str
    """The figure of a card."""
    about: str
    """What it is."""
    more: tuple[str, ...] = ()
    """What else is said in a line."""

    @property
    def line(self) -> str:
        return "; ".join((f"{self.value} {self.about}", *self.more))


def headline(its: Mapping[str, Any]) -> Headline:
    """Of any workload: those of a kind have a figure that no others have."""
    if "steps" in its:
        about = f"of the time useful, {its['steps']:,} steps of {its['step_s']:.3g} s"
        return Headline(f"{its['useful_fraction']:.1%}", about, (f"interrupted {its['interruptions']:,} times",))
    if "planned_tokens_per_s" in its:
        more = (f"{its['down_s']:,.1f} s without tokens", f"interrupted {its['interruptions']:,} times")
        return Headline(f"{its['tokens_per_s']:,.0f}", f"of {its['planned_tokens_per_s']:,.0f} tokens/s", more)
    if "updates" in its:
        more = (f"{its['goodput_tokens_per_s']:,.0f} tokens/s", f"interrupted {its['interruptions']:,} times")
        return Headline(f"{its['updates']:,} of {its['updates_asked']:,}", "updates", more)
    if "rounds_asked" in its:
        lost = (f"{its['lost_rounds']:,} begun again",) if its["lost_rounds"] else ()
        return Headline(f"{its['rounds']:,} of {its['rounds_asked']:,}", "rounds", (*_spread(its["round_s"]), *lost))
    if "sessions" in its:
        return Headline(f"{its['sessions_done']:,} of {its['sessions']:,}", "sessions done", _spread(its["latency_s"]))
    if "jobs_done" in its:
        more = (f"{its['jobs_stuck']:,} not", f"interrupted {its['interruptions']:,} times")
        return Headline(f"{its['jobs_done']:,}", "jobs done", more)
    if "invocations" in its:
        cold = f"{its['cold']:,} of {its['invocations']:,} calls started an instance"
        return Headline(f"{its['finished']:,} of {its['requests']:,}", "requests answered", (cold,))
    if "finished" in its:
        return Headline(f"{its['finished']:,} of {its['requests']:,}", "requests answered", tuple(_answered(its)))
    return Headline("", "")


def _answered(its: Mapping[str, Any]) -> list[str]:
    found = []
    if its["finished"]:
        first = "first token " if "ttft_s" in its else ""
        found += [first + text for text in _spread(its["ttft_s" if first else "latency_s"])]
        found.append(f"{its['within_limits']:.1%} of these within the limits")
    if its.get("failures") and "begun_again" in its:
        found.append(f"{its['failures']:,} nodes lost, {its['begun_again']:,} requests begun again")
    elif its.get("failures"):
        found.append(f"{its['failures']:,} replicas lost, {its['moved_requests']:,} requests moved")
    return found


def _spread(times: Mapping[str, float] | None) -> tuple[str, ...]:
    return (f"p50 {times['p50']:.3g} s, p99 {times['p99']:.3g} s",) if times else ()
