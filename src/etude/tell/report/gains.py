"""The value of a finding: how much shorter the run is, re-timed, if something were faster. No sentence claims that
something helps, or does not, without that figure."""

from __future__ import annotations

from dataclasses import dataclass

from etude.analyse.critical_path import by_kind
from etude.tell.report.subject import Subject
from etude.tell.view.sentences import Sentence, sentence

LITTLE = 0.02
"""Share of the run below which a gain is not worth advice."""
MOST = 0.5
"""Of what halving all that it does on the critical path would gain with nothing else in the way: who gains less does
not set the pace alone, since another path is nearly as long."""
DEVICE = ("compute", "memory")
HOST, OF_DEVICE, BOTH = 'gain("host")', 'gain("compute", "memory")', 'gain("host", "compute", "memory")'
LINKS = 'gain("communication")'


@dataclass(frozen=True, slots=True)
class Pace:
    """Gain of the run, in ns, if the host, the device, or both took half as long."""

    host_ns: int
    device_ns: int
    both_ns: int
    at_most_ns: int
    """Upper bound of the host's gain: half of its time on the critical path."""
    span_ns: int
    has_device: bool

    @property
    def of_host(self) -> bool:
        """Whether a faster run needs only a faster host."""
        least = max(LITTLE * self.span_ns, MOST * self.at_most_ns)
        return self.host_ns >= least and self.host_ns > self.device_ns

    def sentence(self, subject: Subject) -> Sentence:
        if not self.has_device:
            host, device = "if the time between operators were half as long", "if operators were twice as fast"
        else:
            host, device = "with a host twice as fast", "with a device twice as fast"
        ways = (self.host_ns, HOST, host), (self.device_ns, OF_DEVICE, device)
        (most, first, how), (least, second, other) = ways if self.host_ns >= self.device_ns else ways[::-1]
        both = sentence("")
        if self.both_ns > 1.5 * (most + least):
            both = sentence("; {shorter} with both", shorter=subject.shorter(BOTH))
        differ = most >= LITTLE * self.span_ns > least
        return sentence(
            "Re-timed, the run is {first} {how}, {but} {second} {other}{both}.",
            first=subject.shorter(first),
            how=how,
            but="but" if differ else "and",
            second=subject.shorter(second),
            other=other,
            both=both,
        )


def pace(subject: Subject) -> Pace | None:
    """None if the run is too large to be re-timed."""
    host, device, both = subject.gain("host"), subject.gain(*DEVICE), subject.gain("host", *DEVICE)
    if host is None or device is None or both is None:
        return None
    at_most = by_kind(subject.path).get("host", 0) // 2
    return Pace(host, device, both, at_most, subject.span_ns, subject.has_device)


def of_links(subject: Subject) -> tuple[Sentence, float] | None:
    """Gain of communication twice as fast, as a sentence and as a share of the run; None if unknown. If members are
    missing, late arrival cannot be distinguished from the transfer, so it is an upper bound."""
    ns = subject.gain("communication")
    if ns is None:
        return None
    share = ns / max(subject.span_ns, 1)
    shorter = subject.shorter(LINKS)
    if share >= 0.001 and absent(subject):
        shorter = sentence(
            "at most {shorter}: waiting for ranks that are not present counts as transfer", shorter=shorter
        )
    return sentence("Re-timed with transfers twice as fast, the run is {shorter}.", shorter=shorter), share


def absent(subject: Subject) -> bool:
    """Whether members of collectives are missing from the recording."""
    calls = subject.collectives
    seen, size = (calls[name].to_numpy(zero_copy_only=False) for name in ("ranks_seen", "group_size"))
    return bool((seen < size).any())
