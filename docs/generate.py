"""Writes the pages that are made from the code: data-model.md from the schema, machines.md from the catalogue,
gallery.md with its chart from the studies, systems.md from the studies and systems.yaml.

`--check` only says whether they are up to date.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

from etude.base.figures import EXAMPLE, key_of
from etude.base.units import format_bandwidth, format_bytes, format_count, format_time
from etude.machine import device_names, open_device, open_system, system_names
from etude.machine.data_plane import DataPlane
from etude.machine.power import PowerCosts
from etude.machine.sharing import HostLink
from etude.machine.system import CollectiveSettings, Device, Level, OpCost, Protocol, System
from etude.machine.tier import Tier
from etude.model import schema
from etude.model.job import VALUE_COLUMNS

DOCS = Path(__file__).parent

HEAD = """# Data model

<!-- made by docs/generate.py from `src/etude/model/schema.py`: change it, then run `make docs` -->

Every column of a `Trace` and what it means on the wire. A Trace is one program without a rank; a `Job` binds traces to ranks; a `Timing` holds recorded or simulated times. The words are in the [vocabulary](vocabulary.md).

## Nodes

Row *i* is node *i*. Text columns hold offsets of length-prefixed slices in the trace's heap, which for a trace that was read is the file itself; `-1` means no text. An integer that was not recorded is `UNKNOWN`, the smallest int64.

"""

EDGES = """
## Dependencies

Two CSR tables, data and control apart: node *i* waits for `data[data_start[i]:data_start[i+1]]` and for `ctrl[ctrl_start[i]:ctrl_start[i+1]]`. Order and duplicates are those of the file. An entry `>= 0` is a row; an entry `< 0` is `~k` into `missing`, the ids that no node of the file has. `data_why` and `ctrl_why` say in one byte an edge why it is there. In `.et` and JSON this is the attribute `dep_why` (string_val) of a node of which some reason is known: a letter for each data dependency, then for each control dependency, so that `ltp` is a launch, a tensor and program order. An attribute of that name that does not fit the node's edges (another kind, another length, a letter newer than the schema, no reason at all) stays an attribute. The reasons:

"""

ATTRIBUTES = """
## Attributes

`layout[i]` names a row of `layouts`: the ordered list of a node's attributes as (name, value kind or none, doc string, fields newer than the schema, column). An attribute whose meaning Etude owns has its value in the column named in the table above; any integer kind is read, and the kind is remembered, so that the file comes back as it was. All others have their values in `cells`, row after row: the 64 bits of a scalar, or the heap offset of text, bytes and lists. A value that does not fit its column (a collective newer than the schema, an exact time that contradicts the µs field) stays in a cell. Fields of a node that are newer than the schema are kept in `extra_row` and `extra`, and written back behind the node's own.

## Times

Times are int64 ns. In `.et` the exact ns travel as attributes `start_ns` and `duration_ns` beside the µs fields, which are rounded (halves up). Read back, ns win if they round to the µs field; else the µs field wins and a note says so. 0 µs without ns is unknown. A `Timing` holds `start_ns` and `end_ns` in blocks: one a rank if measured, one a class of ranks if folded.

A job with the [times of its program](link.md#times-of-the-program), or an estimate of them, has the times under the profiler as well, on the same nodes: the columns `recorded_start_ns`, `recorded_end_ns` and `recorded_duration_ns`, and in `time_source` where the node's own times come from. A job of any other times has none of the four. `etude.open("job/", as_recorded=True)`, and `--as-recorded` of commands, give the job with the other timing; an edit leaves one. In Parquet and SQL `time_source` is a word: `light`, `corrected`, `recorded`.

## Job

| field | meaning |
|---|---|
| `traces` | the distinct programs |
| `ranks`, `trace_of` | the ranks that are present, ascending, and which trace each runs |
| `world_size` | ranks of the whole run; those present may be fewer |
| `groups` | ordered members and source name of each group; members may be unknown |
| `group_start`, `group_of` | group bound to each group slot, rank by rank |
| `peer_start`, `peer_of` | rank bound to each peer slot, rank by rank |
| `id_base`, `tag_base` | added to a trace's ids and tags (tags of -1 are none) |
| `values` | rank -> column -> values of its own, for {values} |
| `metadata`, `metadata_of` | distinct GlobalMetadata messages, and which one each rank has |
| `timing` | recorded times, if any |
| `provenance` | what wrote it and from what: tool, model, device, ... |
| `notes` | what a reader noticed and did not refuse |

Parquet keeps all of this. `.et` and JSON keep what nodes and ranks say, the groups and the measured times. They have no place for `provenance` and `notes`, for how ranks share traces (`fold` finds that again), for the origin of times and the offsets of clocks, and for an end that is not start + duration (or start + `recorded_ns`, an attribute of linked traces); `etude convert` lists what it leaves out. Whose times a job has is in the metadata of each rank (`timing`, `anchored`, ...: attributes of GlobalMetadata), where they are those of the program; the times under the profiler are in Parquet alone.

"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(r) for r in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def columns() -> str:
    rows = []
    for c in schema.NODE:
        default = "`UNKNOWN`" if c.default == schema.UNKNOWN else f"`{c.default}`"
        attr = f"`{c.attr}` ({c.attr_kind.wire_name})" if c.attr else ""
        rows.append((f"`{c.name}`", c.dtype, c.unit, c.doc, default, attr))
    return table(("column", "type", "unit", "meaning", "if not recorded", "attribute in `.et`"), rows)


def members(enum: type[IntEnum], wire: dict[IntEnum, int] | None = None) -> str:
    head = ("value", "name", *(("on the wire",) if wire is not None else ()))
    return table(
        head, ((str(int(m)), f"`{m.name}`", *((str(wire.get(m, "")),) if wire is not None else ())) for m in enum)
    )


def reasons() -> str:
    return table(("value", "name", "in `dep_why`"), ((str(int(w)), f"`{w.name}`", f"`{w.letter}`") for w in schema.Why))


def page() -> str:
    parts = [HEAD, columns(), EDGES, reasons(), ATTRIBUTES.replace("{values}", _values())]
    parts += ["## Enums\n\nInternal numbers start at NONE = 0 and are never those of the wire.\n"]
    parts += ["\n### Kind\n\n", members(schema.Kind, dict(schema.KIND_TO_WIRE))]
    parts += ["\n### Collective\n\n", members(schema.Collective, dict(schema.COLLECTIVE_TO_WIRE))]
    parts += ["\n### LaneKind\n\n", members(schema.LaneKind)]
    parts += ["\n### TimeSource\n\n", members(schema.TimeSource)]
    parts += ["\n### ValueKind\n\nThe field number on the wire is the value plus 2.\n\n", members(schema.ValueKind)]
    return "".join(parts)


def _values() -> str:
    return ", ".join(f"`{c}`" for c in VALUE_COLUMNS)


MACHINES_HEAD = """# Machines

<!-- made by docs/generate.py from the catalogue in etude/machine/catalogue: change that, then run `make docs` -->

## A file of your own

<!-- file: my-cluster.yaml -->
```yaml
name: my-cluster
device: h100            # one of the devices below, or its keys
levels:                 # of the network, innermost first
  - {name: nvlink, kind: switch, size: 8, bandwidth: 450GB/s, latency: 700ns}
  - {name: fabric, kind: switch, size: 64, bandwidth: 400Gb/s, latency: 2us}
```

That is 64 nodes of 8 H100. A bandwidth is that of one device in one direction, a rate of a device is a dense peak, and figures carry their units. Unknown keys, zeros and negative figures are refused, with their place: `` my.yaml: levels[0]: bandwidth: `0GB/s` is not positive ``.

## What you do with it

```
etude systems check my-cluster.yaml                                  # what it is, or what is wrong with it
etude predict llama3-8b --gpus 64 --zero 3 --system my-cluster.yaml  # a training step
etude simulate job/ --system my-cluster.yaml --network flow          # a job that you have, on its links
etude energy predict llama3-8b --gpus 64 --zero 3 --system my-cluster.yaml   # what it draws
```

<!-- slow: simulates every plan that fits -->
```
etude plan llama3-70b --gpus 512 --system my-cluster.yaml            # how to cut a model for it
```

Every command with `--system` takes the path of such a file, or the name of a [cluster](#clusters) or [device](#devices) of the catalogue: `--system dgx-h100`, `--system rtx5090`. A device has no link to others: by its name it is one device, and a job of several ranks on it is refused; `--system rtx5090@25GB/s` gives each the bandwidth of its link, one direction, to a switch. From Python `etude.open_system("my-cluster.yaml")` is the same, and `.resized(512)` is as many of its nodes as 512 devices take (of a torus the slice nearest to a cube; `wrap` says whether its dimensions still close: on TPU v6e a dimension of 16 does, on v5p those of whole 4x4x4 cubes). What the figures do is in [Costs](costs.md).

"""

MACHINES_MORE = """## What else a file can say

**Levels** say what a topology is: several `ring` levels make a torus (or one of `kind: torus` with a `shape`), `mesh` levels one without wraps, a fat tree is `switch` upon `switch` with its `oversubscription`, a rail-optimised fabric has `rails`, a dragonfly is a `switch` level for the group under a `full` level for the groups. A device has a port to scale up and one to scale out: the second belongs to the level at which the bandwidth changes most, and the other tiers are reached through the switches below them (a fat tree of equal bandwidths has one port a device). `port: own` or `port: shared` on a level says otherwise.

**A mix.** `devices` in the place of `device` says which devices are of which kind, by number or by units of a level; every device must have one. Kinds are those of the catalogue, or of your own under `kinds`. A rank takes the time, memory and power of its own device; `etude.open_system("rtx5090")` is one device of the catalogue by itself.

<!-- file: prefill-and-decode.yaml -->
```yaml
name: prefill-and-decode
devices: {h100: nvlink 0, a100: 8-13, small: 14-15}
kinds: {small: {name: Small, peak: {bf16: 50T}, memory: 16GB, memory_bandwidth: 400GB/s, power: 150}}
levels:
  - {name: nvlink, kind: switch, size: 8, bandwidth: 300GB/s}
  - {name: fabric, kind: switch, size: 2, bandwidth: 200Gb/s}
```

**Regions.** A level whose units are in different places names them, one for each unit: its messages and steps take, in addition to `latency`, half of the round trips of the two farthest. `round_trip` of a region is to a point that all meet at and back (a user, an exchange); regions of the catalogue do not say it, and a level that names one without it is refused.

<!-- file: two-sites.yaml -->
```yaml
name: two-sites
device: h100
regions: {east: {round_trip: 80ms}, west: {round_trip: 20ms}}
levels:
  - {name: nvlink, kind: switch, size: 8, bandwidth: 450GB/s}
  - {name: wan, kind: switch, size: 2, bandwidth: 100Gb/s, latency: 1ms, regions: [east, west]}    # 51 ms
```

**Memory below the devices, and data.** `tiers` are the host's memory, disks and stores ([tiers](tiers.md)); ranks have one in common by `per` and share its `links`. `data` is what feeds the machine ([data](data.md)).

<!-- file: with-hosts.yaml -->
```yaml
name: with-hosts
device: h100
levels:
  - {name: nvlink, kind: switch, size: 8, bandwidth: 450GB/s}
tiers:
  - {name: host, capacity: 2TB, read: 55GB/s, write: 55GB/s, per: nvlink, links: 8}     # a link for each device
  - {name: nvme, capacity: 30TB, read: 50GB/s, write: 25GB/s, latency: 50us, per: nvlink}
data: {store: 2GB/s, producers: 8, make: 1GB/s, commit: 5ms, queue: 4}
```

```
etude systems check prefill-and-decode.yaml
etude systems check two-sites.yaml
etude systems check with-hosts.yaml
```

**A graph.** An InfraGraph file is a system too, known by its content: `etude simulate job/ --system cluster.infragraph.yaml`. [Networks](network.md#infragraph) says what is read and what is refused. Its links are simulated (`--network flow` by default); closed forms take its *levels*, which are worked out where the graph is regular: devices within a number of hops of one another make a unit, and a level is where units of one size divide all devices. `etude systems check FILE` prints them. A graph without levels (a ring of devices, nodes of different size) is simulated with `flow` or `links` only. What an InfraGraph has no place for is in a second file:

<!-- not run: the graph and its rates are files of your own -->
```yaml
name: my-cluster
device: h100                        # else what the annotations say: etude.flops.bf16, etude.memory, ...
topology: cluster.infragraph.yaml   # from the folder of this file
annotations: rates.yaml             # optional; or a second document in the InfraGraph
placement: [0, 2, 1, 3]             # optional: the xpu, in order, of each rank
collectives: {p2p_launch: 5us}      # optional, as below
levels: [...]                       # optional: of your own, for closed forms
```

**Dumps of other tools** are graphs too, known by their content, as `topology` of such a file or by themselves:

| file | what it is | keys beside `topology` |
|---|---|---|
| what NCCL writes to `NCCL_TOPO_DUMP_FILE` | one node: CPUs, PCIe, NVLink, network cards; ranks as in the file. Rates are those that NCCL takes: PCIe from its speed and lanes, NVLink from the number of links and the GPU's generation, cards from `speed` | `nodes: 4`: so many such nodes, whose cards meet in one switch, or with `rails: true` card *i* of all nodes in switch *i*; `latency: {nvlink: 300ns, pci: 500ns, cpu: 500ns, network: 1us}` (these are the defaults) |
| `ibnetdiscover` | an InfiniBand fabric: a rank is a port of a host's card, in the order of names; rates from width and speed (`4xHDR`: 25 GB/s) | `tables: lfts.txt`: routing tables of `ibroute` or `dump_lfts.sh`, with which each message takes the way that the subnet manager chose, also with `--routing`; after a failure ways are searched; `latency: 500ns` (default) of each link |

<!-- not run: the dumps are files of your own -->
```yaml
name: my-rack
device: h100
topology: topo.xml
nodes: 4
rails: true
```

Neither has latencies: those above are assumptions, which `etude systems check FILE` prints.

"""


def _power(device: Device) -> str:
    return f"{device.power_w:g} W" if device.power_w else "not published"


def devices() -> str:
    rows = []
    for name in device_names():
        d = open_device(name)
        peaks = ", ".join(f"{k} {format_count(int(v))}" for k, v in d.peak_flop_per_s.items())
        memory = f"{format_bytes(d.memory_bytes)}, {format_bandwidth(int(d.memory_bandwidth_bytes_per_s))}"
        rows.append((f"`{name}`", d.name, peaks, memory, _power(d), d.source.get("*", "")))
    return table(("device", "what", "FLOP/s, dense", "memory", "power", "source"), rows)


def clusters() -> str:
    rows = []
    for name in system_names():
        s = open_system(name)
        for number, level in enumerate(s.levels):
            what = f"{level.size} x {level.kind}" + (", rails" if level.rails else "")
            what += f", {level.oversubscription:g}:1" if level.oversubscription > 1 else ""
            rate = f"{format_bandwidth(int(level.bandwidth_bytes_per_s))} x {level.efficiency:g}"
            rate += f" ({level.in_switch_efficiency:g} in the switch)" if level.in_switch_efficiency else ""
            first = (f"`{name}`", s.doc) if number == 0 else ("", "")
            latency = format_time(int(level.latency_ns))
            rows.append((*first, level.name, what, rate, latency, level.source.get("bandwidth", "")))
    return table(("system", "what", "level", "shape", "bandwidth", "latency", "source of the bandwidth"), rows)


def sources() -> str:
    """Each source of a figure once, with the figures that it is the source of."""
    found: dict[str, list[str]] = {}
    parts: list[tuple[str, Any]] = [(f"device {n}", open_device(n)) for n in device_names()]
    for name in system_names():
        s = open_system(name)
        parts += [(f"{name}, {level.name}", level) for level in s.levels] + [(name, s.collectives)]
    for what, part in parts:
        for key, text in part.source.items():
            found.setdefault(text, []).append(f"{what}: {'all other figures' if key == '*' else key}")
    return table(("source", "figures"), ((text, "; ".join(uses)) for text, uses in sorted(found.items())))


def keys(cls: type[Any]) -> str:
    rows = []
    for f in filter(lambda f: f.metadata, fields(cls)):
        kind = f.metadata["kind"].replace("map of ", "")
        by_key = "by key: " * f.metadata["kind"].count("map of ")
        needed = f.default is MISSING and f.default_factory is MISSING
        rows.append(
            (f"`{key_of(f)}`", by_key + EXAMPLE.get(kind, "see below"), f.metadata["doc"], "yes" if needed else "")
        )
    return table(("key", "for example", "meaning", "needed"), rows)


MACHINES_CATALOGUE = """## The catalogue

An *assumption* says so: it was not measured.

![Devices by their dense rate and their memory bandwidth](pictures/machines.svg)

*Each point is a device. Above the upper line an operator needs more than 300 operations for each byte to be limited by compute. (`python docs/pictures.py machines`)*

"""


def machines_page() -> str:
    parts = [MACHINES_HEAD, MACHINES_MORE, MACHINES_CATALOGUE, "### Devices\n\n", devices()]
    parts += ["\n### Clusters\n\n", clusters(), "\n## All keys\n\n"]
    titles = {
        System: "System",
        Level: "Level",
        Device: "Device",
        OpCost: "`ops` of a device",
        PowerCosts: "`energy` of a device",
        HostLink: "`host_link` of a device",
        Tier: "`tiers`",
        DataPlane: "`data`",
    }
    for cls, title in {**titles, CollectiveSettings: "`collectives`", Protocol: "`protocols`"}.items():
        parts += [f"### {title}\n\n", keys(cls), "\n"]
    return "".join([*parts, "## Sources\n\n", sources()])


CHART = """![Ours over the published figure, for each claim of each study](pictures/claims.svg)

*A row for each study; a dot is a claim with a figure, a square a statement, and what lies beyond the scale is at its edge. Red has the other sign, with the reason at its right; each mark has its claim and why ours differs as its title. (`python docs/pictures.py claims`)*

"""

GALLERY_HEAD = """# Gallery of studies

Published systems as [studies](studies.md), one YAML file each. `etude study run NAME` runs one, `etude study show NAME` prints its file, `--neutral` switches its mechanism off. Figures of a paper are its authors'; a **shape** is reproduced from stated inputs with a stated margin and never tuned to a figure, an **exact** check has none, an **identity** is decided by the inputs alone. `whole`: every exact property that the entry's description asks for is a check of its own; `partial` says what is missing. `faithful`: the mechanism is simulated from stated inputs, and the published figure could have come out differently; `thin` says why that is not so.

"""

CLAIMS_HEAD = """
## Published figures and ours

{counts}, by `python benchmarks/study_claims.py --full --json benchmarks/claims.json` (*quick*: with the entry's smaller settings). An effect that differs by no more than a factor of 1.3 agrees, or one whose 95% interval over seeds holds the published figure; see [published figures](studies.md#published-figures). Those that go the other way come first.

"""

VERDICTS = ("contradicts", "no value", "weaker", "stronger", "agrees", "not asked")


def gallery_page() -> str:
    from etude.decide.study import entries
    from etude.decide.study import study as opened

    rows = [(f"`{e['name']}`", e["system"], GROUPS[e["group"]], e["title"], e["status"], e["grade"]) for e in entries()]
    head = ("study", "system", "about", "what it shows", "status", "grade")
    parts = [GALLERY_HEAD, table(head, rows), _claims_of_all()]
    for e in entries():
        spec = opened(e["name"]).spec
        facts = {key: " ".join(str(spec.facts[key]).split()) for key in ("about", "published", "not_shown")}
        checks = [(c.kind, c.name, f"{c.margin:g}" if c.kind == "shape" else "") for c in spec.checks]
        parts += [f"\n## {e['system']}\n\n{facts['about']}\n\nPublished: {facts['published']} "]
        parts += [f"Not shown: {facts['not_shown']} ", f"Grade: {': '.join(filter(None, (e['grade'], e['why'])))}.\n\n"]
        parts += [table(("kind", "check", "margin"), checks)]
    return "".join(parts)


def kept_claims() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Study, settings, claim, and what the last run found, kept in a file; why it differs is in the entries."""
    from etude.decide.study import entries
    from etude.decide.study import study as opened

    kept = json.loads((DOCS.parent / "benchmarks/claims.json").read_text("utf-8"))
    for e in entries():
        run = kept.get(e["name"], {"claims": [], "settings": ""})
        for claim, found in zip(opened(e["name"]).spec.claims, run["claims"], strict=bool(run["claims"])):
            yield e["name"], run["settings"], claim, found


def _claims_of_all() -> str:
    rows: list[tuple[str, ...]] = []
    for study, settings, claim, found in kept_claims():
        ours = _figure(found.get("ours"), found)
        if "low" in found:
            ours += f" ({_figure(found['low'], {})} to {_figure(found['high'], {})})"
        if settings == "quick":
            ours += ", *quick*"
        ends = found.get("published")
        said = " to ".join(_figure(v, {}) for v in ends) if isinstance(ends, list) else _figure(ends, found)
        words = "; ".join(filter(None, (claim.conditions, claim.why)))
        rows.append((f"`{study}`", claim.figure, said, ours, found["verdict"], words))
    counts = Counter(row[4] for row in rows)
    said = ", ".join(f"{v} {counts[v]}" for v in VERDICTS if counts[v])
    head = CLAIMS_HEAD.replace(
        "{counts}", f"{len(rows)} figures and statements of {len({r[0] for r in rows})} entries: {said}"
    )
    columns = ("study", "published figure", "published", "ours", "verdict", "conditions, and why ours differs")
    return head + CHART + table(columns, sorted(rows, key=lambda row: VERDICTS.index(row[4])))


def _figure(value: Any, claim: dict[str, Any]) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "so", False: "not so"}[value]
    return f"{value:,.4g}" + (f" {claim['unit']}" if "unit" in claim else "")


SYSTEMS_HEAD = """# Published systems

<!-- made by docs/generate.py from docs/systems.yaml and the gallery: change these, then run `make docs` -->

{all} published systems, from MLCommons Chakra to those that have nothing to do with execution traces, and what Etude does for each. {entries} of them are [studies of the gallery](gallery.md) today: the command runs the study and prints every check. *Planned* says what is to be checked once its mechanism is there. The last column is what no trace can show, whoever simulates it. Descriptions are ours; the machines to simulate on are in [Machines](machines.md).

"""

GROUPS = {
    "C1": "Evidence and comparison", "C2": "Costs of operators", "C3": "Training", "C4": "Communication rewritten",
    "C5": "Overlap and simulation", "C6": "Memory and storage", "C7": "Serving", "C8": "Agents and workflows",
    "C9": "Several jobs on one cluster", "C10": "Faults and recovery", "C11": "Diagnosis", "C12": "Energy",
    "C13": "Placement and partition",
}  # fmt: skip


def systems_page() -> str:
    import yaml

    from etude.decide.study import entries

    given = yaml.safe_load((DOCS / "systems.yaml").read_text())
    known, gallery = {row["system"] for row in given["studied"]}, entries()
    if lost := [e["system"] for e in gallery if e["system"] not in known]:
        raise SystemExit(f"systems.yaml has no row for the gallery's `{lost[0]}`")
    count = 1 + len(given["studied"]) + len(given["outside"])
    head = SYSTEMS_HEAD.replace("{all}", str(count))
    parts = [head.replace("{entries}", str(len({e["system"] for e in gallery})))]
    chakra = [(row["does"], f"`{row['command']}`") for row in given["chakra"]]
    parts += ["## MLCommons Chakra\n\nThe core: its format is read and written, and each of its tools has a command.\n\n",
              table(("Chakra", "command"), chakra)]  # fmt: skip
    for group, title in GROUPS.items():
        rows = [_system(row, gallery) for row in given["studied"] if row["group"] == group]
        parts += [f"\n## {title}\n\n", table(("system", "command", "what is checked", "what no trace can show"), rows)]
    outside = [(row["system"], row["reason"]) for row in given["outside"]]
    parts += ["\n## Outside the field\n\nNo execution trace of a machine-learning job says anything about these.\n\n"]
    return "".join([*parts, table(("system", "why"), outside)])


def _system(row: dict[str, str], gallery: list[dict[str, Any]]) -> tuple[str, str, str, str]:
    """A row of the page: from the gallery where there is a study."""
    from etude.decide.study import study as opened

    what = f"**{row.get('title', row['system'])}** {row['does']}"
    found = [e for e in gallery if e["system"] == row["system"]]
    if not found:
        today = "".join(f"<br>today `{command}`" for command in row.get("today", "").split("; ") if command)
        return what, f"planned{today}", f"planned: {row['check']}", row["hidden"]
    specs = [opened(e["name"]).spec for e in found]
    commands = "<br>".join(f"`etude study run {e['name']}`" for e in found)
    checked = ""
    for kind in ("exact", "shape", "identity"):
        names = [check.name for spec in specs for check in spec.checks if check.kind == kind]
        checked += f"*{kind}*: {'; '.join(names)}<br>" if names else ""
    checked = checked.removesuffix("<br>") + "".join(f"<br>{e['status']}" for e in found if e["status"] != "whole")
    hidden = " ".join(" ".join(str(spec.facts["not_shown"]).split()) for spec in specs)
    return what, commands, checked, hidden


def main(argv: list[str]) -> int:
    from gallery_chart import claims
    from generate_api import analyse_index, api_page

    analyses = DOCS / "analyse" / "index.md"
    pages = {
        DOCS / "api.md": api_page(),
        analyses: analyse_index(analyses.read_text()),
        DOCS / "data-model.md": page(),
        DOCS / "machines.md": machines_page(),
        DOCS / "gallery.md": gallery_page(),
        DOCS / "pictures/claims.svg": claims(),
        DOCS / "systems.md": systems_page(),
    }
    if "--check" in argv:
        return 0 if all(path.read_text() == text for path, text in pages.items()) else 1
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
