"""Systems with round figures, so that a time can be worked out by hand: 1 byte/ns, 10 ns a step, nothing else."""

from etude.machine.system import CollectiveSettings, Device, Level, LevelKind, Protocol, System

DEVICE = Device(name="toy", peak_flop_per_s={"bf16": 1e12, "fp32": 1e11}, memory_bandwidth_bytes_per_s=1e9)


def level(name: str, kind: str, size: int, *, gbyte_per_s: float = 1.0, latency_ns: float = 10.0, **more) -> Level:
    bandwidth = gbyte_per_s * 1e9
    return Level(
        name=name, kind=LevelKind(kind), size=size, bandwidth_bytes_per_s=bandwidth, latency_ns=latency_ns, **more
    )


def one_level(kind: str, size: int, **more) -> System:
    return System(name="toy", device=DEVICE, levels=(level("l0", kind, size, **more),))


def two_levels(inner: int = 4, outer: int = 2, *, outer_gbyte_per_s: float = 0.1, rails: bool = False) -> System:
    """Fast inside (10 ns), a tenth of the bandwidth outside (100 ns)."""
    out = level("l1", "switch", outer, gbyte_per_s=outer_gbyte_per_s, latency_ns=100.0, rails=rails)
    return System(name="toy", device=DEVICE, levels=(level("l0", "switch", inner), out))


def with_protocols(system: System, **protocols: Protocol) -> System:
    return system.replace(collectives=CollectiveSettings(protocols=protocols))
