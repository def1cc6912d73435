"""The settings of a simulation: each is a figure, which commands have as a flag and files as a key."""

from dataclasses import dataclass

from etude.base.figures import figure, switch, text
from etude.run.simulate.choices import Network, PacketFabric, Policy, Routing, Times


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """Settings of a simulation as texts; `named_options` makes values of those that are given."""

    network: Network | None = figure(
        "choice",
        "`analytic`: closed forms; `links`: one message at a time on a link; `flow`: links are shared fairly; "
        "`packets`: queues; `external:COMMAND`: another program. Graphs need `flow`",
        None,
        of=Network,
    )
    routing: Routing = figure(
        "choice",
        "choice among equally short routes, on a network with links: by hash, least loaded, or all",
        Routing.STATIC,
    )
    fabric: PacketFabric | None = figure(
        "choice",
        "rules of `packets`: RoCE behind PFC (default), with DCQCN, with drops, credits of InfiniBand, windows, "
        "receivers that give credit, cut packets, or fair queues",
        None,
        of=PacketFabric,
        needs="network=packets",
    )
    packets: tuple[str, ...] = figure(
        "several",
        "only these go by packets, the rest are flows: `all_to_all`, `message`, `5ms-8ms`, `leaf.3`, `leaf.3/spine.1`, "
        "`auto`: where flows exceed a link",
        (),
        like=["auto", "all_to_all"],
        needs="network=packets",
        rare=True,
    )
    compute: str = figure(
        "text",
        "compute times: `recorded`, `roofline`, `table=ops.csv`, `scale=0.5`",
        "recorded",
        like=["roofline", "scale=0.5"],
    )
    kernel: tuple[str, ...] = figure(
        "several",
        "another kernel: `product:w4a16:g128`, `product:lcma:2,2,2,7`; with `auto` the fastest for each op",
        (),
        like="product:w4a16:g128",
    )
    units: str = text("units of the device: `auto`, a name, or a split: `cpu+sme`", like="auto", rare=True)
    collective: tuple[str, ...] = figure(
        "several", "algorithm: `all_reduce=tree`, `=mine.xml`, `=trace/`", (), like="all_reduce=tree"
    )
    collective_times: Times = figure(
        "choice", "how times of collectives and messages are found", Times.MODELLED, rare=True
    )
    policy: Policy = figure("choice", "which ready node a free lane takes", Policy.READY)
    eager_bytes: int | None = figure(
        "bytes", "largest message sent without waiting, `64KiB`; default: all", None, zero=True, rare=True
    )
    concurrent_network: bool = figure("flag", "do not queue communication that has no stream", False, rare=True)
    overlap: tuple[str, ...] = figure(
        "several", "slowdown while both run: `compute=1.1`, `communication=1.2`", (), like="compute=1.1"
    )
    share: tuple[str, ...] = figure(
        "several",
        "a shared capacity and what uses it: `hbm=compute:0.8,memory:0.4`, `nic@node=...`; `a>b`: a first; `b/32MB`",
        (),
        like="hbm=compute:0.8,communication:0.4",
        rare=True,
    )
    contention: bool = switch("kernels, collectives and copies compete for cores, memory and host link")
    grain: tuple[str, ...] = figure(
        "several",
        "limit memory lines in flight: `line=128B`, `outstanding=4096`, `ctas=16`, `rate=20GB/s`, `access=load`",
        (),
        like="outstanding=4096",
        rare=True,
    )
    jitter: tuple[str, ...] = figure(
        "several",
        "relative spread of times: `compute=0.05`; also host, collective, p2p, memory, step, action; `@trend.json`",
        (),
        like="compute=0.05",
    )
    slow_rank: tuple[str, ...] = figure(
        "several", "slow down a rank: `3=1.2` makes rank 3 take 1.2 times as long", (), like="3=1.2"
    )
    slow_link: tuple[str, ...] = figure(
        "several", "slow down links: `0-1=2` between ranks; `nic.0/leaf.0=2` one link", (), like="0-1=2"
    )
    failed_link: tuple[str, ...] = figure(
        "several", "fail links: `0-1` between ranks; `nic.0/leaf.0` one link", (), like="0-1", rare=True
    )
    link_change: tuple[str, ...] = figure(
        "several",
        "change a link during the run: `10ms:0/switch0.0=4` makes it four times slower, `=inf` fails it, "
        "`=1` restores it",
        (),
        like="10ms:0-1=4",
        rare=True,
    )
    remote_memory: tuple[str, ...] = figure(
        "several",
        "memory outside the device: `bandwidth=50GB/s`, `latency=1us`, `capacity=1TB`",
        (),
        like="bandwidth=50GB/s",
        rare=True,
    )
    seed: int = figure("count", "seed of the jitter", 0, needs="jitter")
    fold: bool | None = figure("flag", "simulate identical ranks only once; default: where possible", None, rare=True)
