"""What is asked of the tiers below a device's memory: transfers, and graph networks whose features are in storage."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import Printed, Tabled
from etude.base.parameters import is_given, spelled
from etude.base.talk import say

if TYPE_CHECKING:
    from etude.cost.tiers.graphs import FeatureGraph, GraphPass
    from etude.machine.system import Device, System

OF_RANDOM = ("nodes", "edges", "exponent", "shuffle", "locality", "reach", "seed")
"""Parameters of a graph that is drawn."""
GRAPH, READING = "Graph", "Features and reading"


@dataclass(frozen=True, kw_only=True)
class OnServer:
    """The parameter of what reads the tiers of a system."""

    system: str = figure(
        "text", "simulate there: the tiers and the host link of this system", "h200-server", names=("-s",),
        metavar="NAME", like="dgx-h100", panel="Machine",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Offload(OnServer):
    """Transfer times below the device's memory: copies, files, checkpoints, layers streamed from the host

    etude ops offload transfer.csv --system h200-server
    etude ops offload layer_stream.csv --json

    The kind of a file follows from its columns; docs/tiers.md names them. Times are in ns.
    """

    rows: str = argument("path", "CSV file of measured copies, files, checkpoints or streamed layers", like="other.csv")
    output: Tabled = part(Tabled)


def offload_inputs(asked: Offload) -> "tuple[System, Path]":
    from etude.machine import open_system

    return open_system(asked.system), Path(asked.rows)


def offloaded(given: "tuple[System, Path]") -> list[dict[str, Any]]:
    from etude.cost.tiers.measured import offload_rows

    return list(offload_rows(*given))


def offload_table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    errors = [abs(r["predicted"] / r["measured"] - 1) for r in found if r["measured"]]
    if errors:
        say(f"{len(errors)} measured values: mean error {sum(errors) / len(errors):.1%}")
    return [row | {"predicted": round(row["predicted"])} for row in found]


class Reading(StrEnum):
    GATHER = "gather"
    PARTITIONS = "partitions"
    STREAM = "stream"


class EvictionPolicy(StrEnum):
    LRU = "lru"
    LFU = "lfu"
    PINNED = "pinned"
    BELADY = "belady"
    MIN_PENDING = "min_pending"


class Partitioner(StrEnum):
    ORDER = "order"
    GREEDY = "greedy"


@dataclass(frozen=True, kw_only=True)
class GraphNetwork(OnServer):
    """The reads, writes and time of a graph network whose features are in storage

    etude ops graph --nodes 100000 --edges 1000000 --feature 512B --partitions 100 --memory 8MB --read partitions
    etude ops graph --nodes 100000 --edges 1000000 --exponent 2.2 --feature 512B --memory 8MB --read stream --json
    etude ops graph --graph edges.csv --partitions 64 --partitioner greedy --feature 1kB --memory 64MB --train

    The tier, the host, the link and the device work in parallel, as a pipeline over parts. docs/tiers.md says how.
    """

    feature_bytes: int = figure("bytes", "bytes of a node's features", panel=READING)
    room_bytes: int = figure(
        "bytes", "host memory for features, or for partial sums", key="memory", names=("--room",), panel=READING
    )
    nodes: int = figure("count", "number of nodes of a random graph", 0, like=200_000, panel=GRAPH)
    edges: int = figure(
        "count",
        "number of its edges, up to 2,000,000; describe a larger graph by its ratios",
        0,
        like=500_000,
        panel=GRAPH,
    )
    graph: str | None = figure("path", "CSV file of edges instead: source,target", None, panel=GRAPH)
    partitions: int = figure("count", "number of equal parts that are processed in turn", 1, panel=GRAPH)
    layers: int = figure("count", "number of layers of the network", 2, panel=GRAPH)
    locality: float = figure(
        "fraction", "fraction of the edges of a random graph that stay inside a partition", 0.5, zero=True, panel=GRAPH
    )
    reach: int = figure("count", "distance in partitions that other edges reach; 0: anywhere", 0, panel=GRAPH)
    exponent: float = figure(
        "number",
        "exponent of power-law degrees: `2.2`; 0: all nodes have the same degree",
        0.0,
        like=2.5,
        panel=GRAPH,
    )
    shuffle: bool = switch("number the nodes at random, not partition by partition", panel=GRAPH)
    partitioner: Partitioner = figure(
        "choice", "partition by `order` of the nodes, or `greedy` by neighbours", Partitioner.ORDER, panel=GRAPH
    )
    seed: int = figure("count", "random seed of the graph", 0, panel=GRAPH)
    read: Reading = figure(
        "choice", "`gather` pages, whole `partitions`, or `stream` all features", Reading.GATHER, panel=READING
    )
    policy: EvictionPolicy = figure(
        "choice",
        "eviction policy of that memory",
        EvictionPolicy.LRU,
        needs="read=gather|read=partitions",
        panel=READING,
    )
    page_bytes: int = figure("bytes", "page size", 4000, needs="read=gather", panel=READING)
    train: bool = switch("also run a backward pass", panel=READING)
    regather: bool = switch("gather again in the backward pass", needs="train", panel=READING)
    tier: str = figure("text", "name of the tier that holds the features", "disk", like="host", panel="Machine")
    host: str = figure(
        "text", "device of the catalogue whose memory gathers and sums", "xeon-8480", like="desktop", panel="Machine"
    )
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGraphInputs:
    graph: "FeatureGraph | None"
    """None: the one of a file."""
    file: Path | None
    partitions: int
    feature_bytes: int
    partitioner: str
    how: dict[str, Any]
    system: "System"
    tier: str
    host: "Device"


def graph_inputs(asked: GraphNetwork) -> FeatureGraphInputs:
    from etude.machine import open_device, open_system

    if asked.train and asked.read is Reading.STREAM:
        said = spelled(asked, "read")
        hint = "whole partitions can be trained: `partitions`"
        raise UsageError(f"{said} stream applies only to inference, not to {spelled(asked, 'train')}", hint=hint)
    how = {"layers": asked.layers, "room_bytes": asked.room_bytes, "read": asked.read.value}
    if asked.read is not Reading.STREAM:
        how |= {"policy": asked.policy.value, "train": asked.train, "regather": asked.regather}
    if asked.read is Reading.GATHER:
        how |= {"page_bytes": asked.page_bytes}
    file, partitions = None if asked.graph is None else Path(asked.graph), asked.partitions
    common: dict[str, Any] = {
        "partitions": partitions,
        "feature_bytes": asked.feature_bytes,
        "partitioner": asked.partitioner.value,
    }
    drawn = [name for name in OF_RANDOM if file is not None and is_given(asked, name)]
    if drawn:
        raise UsageError(
            f"a graph is either read, by {spelled(asked, 'graph')}, or drawn, by {spelled(asked, drawn[0])}, not both"
        )
    return FeatureGraphInputs(
        graph=_drawn(asked, common) if file is None else None, file=file, **common, how=how,
        system=open_system(asked.system), tier=asked.tier, host=open_device(asked.host),
    )  # fmt: skip


def _drawn(asked: GraphNetwork, common: dict[str, Any]) -> "FeatureGraph":
    from etude.cost.tiers.graphs import FeatureGraph

    if not asked.nodes or not asked.edges:
        nodes, edges, graph = (spelled(asked, name) for name in ("nodes", "edges", "graph"))
        raise UsageError("no graph is given", hint=f"{nodes} and {edges} of a random one, or {graph} and a file")
    near: dict[str, Any] = {"locality": asked.locality, "reach": asked.reach} if common["partitions"] > 1 else {}
    more: dict[str, Any] = {"exponent": asked.exponent, "shuffle": asked.shuffle, "seed": asked.seed}
    return FeatureGraph(nodes=asked.nodes, edges=asked.edges, **near, **more, **common)


def graph_passed(given: FeatureGraphInputs) -> "tuple[FeatureGraph, GraphPass, dict[str, float]]":
    from etude.cost.tiers.graph_time import pass_time
    from etude.cost.tiers.graphs import FeatureGraph, out_of_core

    graph = given.graph
    if graph is None:
        assert given.file is not None
        graph = FeatureGraph.read(
            given.file, partitions=given.partitions, feature_bytes=given.feature_bytes, partitioner=given.partitioner
        )
    found = out_of_core(graph, **given.how)
    return graph, found, asdict(pass_time(found, given.system, given.tier, given.host))


SIZES = ("read_bytes", "written_bytes", "used_bytes", "gathered_bytes", "spilled_bytes", "partitioner_bytes")


def graph_record(result: "tuple[FeatureGraph, GraphPass, dict[str, float]]") -> dict[str, Any]:
    graph, found, took = result
    sizes = {name: getattr(found, name) for name in SIZES} | {"nodes": graph.nodes, "edges": graph.edges}
    times = {name: round(one) for name, one in took.items()}
    return sizes | {"amplification": found.amplification, "inside": graph.inside} | times


def graph_figures(result: "tuple[FeatureGraph, GraphPass, dict[str, float]]") -> dict[str, Any]:
    """The record, formatted."""
    from etude.base.units import format_bytes, format_time

    graph, found, took = result
    shown = {name.removesuffix("_bytes"): format_bytes(getattr(found, name)) for name in SIZES}
    times = {name.removesuffix("_ns"): format_time(round(one)) for name, one in took.items()}
    return shown | {"read over used": f"{found.amplification:.2f}", "edges inside": f"{graph.inside:.2f}"} | times
