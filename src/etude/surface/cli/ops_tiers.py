"""`etude ops offload`, `graph` and `place`: what lies below a device's memory."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, say


def offload(
    rows: Annotated[Path, typer.Argument(help="CSV file of measured copies, files, checkpoints or streamed layers.")],
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: the tiers and the host link of this system.")
    ] = ("h200-server"),
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Transfer times below the device's memory: copies, files, checkpoints, layers streamed from the host

    etude ops offload transfer.csv --system h200-server
    etude ops offload layer_stream.csv --json

    The kind of a file follows from its columns; docs/tiers.md names them. Times are in ns.
    """
    from etude.cost.tiers import offload_rows
    from etude.machine import open_system

    found = offload_rows(open_system(system), rows)
    if json:
        emit({"rows": found}, json=True)
        return
    emit([row | {"predicted": round(row["predicted"])} for row in found], csv=csv, md=md)
    errors = [abs(r["predicted"] / r["measured"] - 1) for r in found if r["measured"]]
    if errors:
        say(f"{len(errors)} measured values: mean error {sum(errors) / len(errors):.1%}")


def graph(
    feature: Annotated[str, typer.Option(help="Bytes of a node's features: `4kB`.")],
    room: Annotated[
        str, typer.Option("--memory", "--room", help="Host memory for features, or for partial sums: `32GB`.")
    ],
    nodes: Annotated[int, typer.Option(min=0, help="Number of nodes of a random graph.")] = 0,
    edges: Annotated[
        int, typer.Option(min=0, help="Number of its edges, up to 2,000,000; describe a larger graph by its ratios.")
    ] = 0,
    file: Annotated[Path | None, typer.Option("--graph", help="CSV file of edges instead: source,target.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of equal parts that are processed in turn.")] = 1,
    layers: Annotated[int, typer.Option(min=1, help="Number of layers of the network.")] = 2,
    read: Annotated[str, typer.Option(help="`gather` pages, whole `partitions`, or `stream` all features.")] = "gather",
    policy: Annotated[
        str, typer.Option(help="Eviction policy of that memory: lru, lfu, pinned, belady, min_pending.")
    ] = "lru",
    page: Annotated[str, typer.Option(help="Page size in bytes, for `gather`.")] = "4kB",
    train: Annotated[bool, typer.Option("--train", help="Also run a backward pass.")] = False,
    regather: Annotated[bool, typer.Option("--regather", help="Gather again in the backward pass.")] = False,
    locality: Annotated[float, typer.Option(help="Fraction of the edges that stay inside a partition.")] = 0.5,
    reach: Annotated[int, typer.Option(min=0, help="Distance in partitions that other edges reach; 0: anywhere.")] = 0,
    exponent: Annotated[
        float, typer.Option(help="Exponent of power-law degrees: `2.2`; 0: all nodes have the same degree.")
    ] = 0.0,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Number the nodes at random, not partition by partition.")
    ] = False,
    partitioner: Annotated[str, typer.Option(help="Partition by `order` of the nodes, or `greedy` by neighbours.")] = (
        "order"
    ),
    seed: Annotated[int, typer.Option(help="Random seed of the graph.")] = 0,
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a tier of this system holds the features.")
    ] = ("h200-server"),
    tier: Annotated[str, typer.Option(help="Name of the tier.")] = "disk",
    host: Annotated[str, typer.Option(help="Device of the catalogue whose memory gathers and sums.")] = "xeon-8480",
    json: AsJson = False,
) -> None:
    """The reads, writes and time of a graph network whose features are in storage

    etude ops graph --nodes 100000 --edges 1000000 --feature 512B --partitions 100 --memory 8MB --read partitions
    etude ops graph --nodes 100000 --edges 1000000 --exponent 2.2 --feature 512B --memory 8MB --read stream --json
    etude ops graph --graph edges.csv --partitions 64 --partitioner greedy --feature 1kB --memory 64MB --train

    The tier, the host, the link and the device work in parallel, as a pipeline over parts. docs/tiers.md says how.
    """
    from etude.base.units import format_bytes, format_time, parse_bytes
    from etude.cost.tiers.graph_time import pass_time
    from etude.cost.tiers.graphs import Graph, out_of_core
    from etude.machine import open_device, open_system

    given: dict[str, Any] = {"feature_bytes": parse_bytes(feature), "partitioner": partitioner}
    if file is not None:
        if nodes or edges or exponent or shuffle:
            raise UsageError(
                "a graph is either read or drawn, not both",
                hint="give --graph, or --nodes and --edges with the options of a random graph",
            )
        drawn = Graph.read(file, partitions=partitions, **given)
    else:
        drawn = Graph(nodes=nodes, edges=edges, partitions=partitions, locality=locality, reach=reach,
                      exponent=exponent, shuffle=shuffle, seed=seed, **given)  # fmt: skip
    found = out_of_core(drawn, layers=layers, room_bytes=parse_bytes(room), read=read, policy=policy,
                        page_bytes=parse_bytes(page), train=train, regather=regather)  # fmt: skip
    took = asdict(pass_time(found, open_system(system), tier, open_device(host)))
    names = ("read", "written", "used", "gathered", "spilled", "partitioner")
    sizes = {f"{name}_bytes": getattr(found, f"{name}_bytes") for name in names}
    if json:
        times = {name: round(one) for name, one in took.items()}
        sizes |= {"nodes": drawn.nodes, "edges": drawn.edges}
        emit(sizes | {"amplification": found.amplification, "inside": drawn.inside} | times, json=True)
        return
    shown = {name.removesuffix("_bytes"): format_bytes(size) for name, size in sizes.items()}
    times = {name.removesuffix("_ns"): format_time(round(one)) for name, one in took.items()}
    emit(shown | {"read over used": f"{found.amplification:.2f}", "edges inside": f"{drawn.inside:.2f}"} | times)


def place(
    model: Annotated[str, typer.Argument(help="Name, Hugging Face id, YAML file or `config.json`.")],
    room: Annotated[str, typer.Option("--memory", "--room", help="Usable device memory: `2GiB,4GiB,8GiB`.")],
    context: Annotated[int, typer.Option(min=1, help="Context length in tokens.")] = 4096,
    bits: Annotated[float, typer.Option(help="Bits per weight; keys and values have 16.")] = 16.0,
    buffers: Annotated[str, typer.Option(help="Fraction of the memory that is used in any case.")] = "0.5GB",
    device: Annotated[
        str, typer.Option("--device", "-d", help="Device: a name in the catalogue, or your own.")
    ] = "rtx5090",
    host: Annotated[str, typer.Option(help="Device of the catalogue whose memory holds the rest.")] = "desktop",
    json: AsJson = False,
) -> None:
    """Tokens per second of one sequence if a device holds part of a model and the host the rest, by memory

    etude ops place llama3-8b --memory 2GiB,8GiB,24GiB --context 16384
    etude ops place qwen3-30b-a3b --memory 4GiB,12GiB --bits 4.5 --device rtx4090 --json

    Only reads take time: an upper bound, whose order by memory was compared with a published table.
    """
    from etude.base.units import format_bytes, parse_bytes
    from etude.machine import open_device
    from etude.make.generate.model import open_model
    from etude.steps.placing import parts_of, tokens_by_room

    rooms, parts = [float(parse_bytes(text)) for text in room.split(",")], parts_of(open_model(model), context, bits)
    found = tokens_by_room(parts, open_device(device), open_device(host), rooms, float(parse_bytes(buffers)))
    if json:
        emit({"device": device, "host": host, "rooms": found}, json=True)
        return
    emit([
        {"room": format_bytes(row["room_bytes"], binary=True), "tokens/s": round(row["tokens_per_s"], 1)}
        | {name: format_bytes(size) for name, size in row["resident_bytes"].items()}
        | {"read far": format_bytes(row["far_read_bytes"])}
        for row in found
    ])  # fmt: skip
