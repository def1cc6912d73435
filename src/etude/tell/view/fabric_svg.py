"""A fabric as an SVG picture: its devices, its switches in layers above them, and the rate of every connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.units import format_bandwidth, format_time
from etude.machine.system import System
from etude.machine.topology import Topology, VertexKind

__all__ = ["fabric_svg"]

MOST: Final = 700
"""Most vertices of a picture; more cannot be read."""
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#a6599a", "#8a6d00", "#3a7d8c", "#b03a5b", "#5b6675")
_LAYER, _MARGIN, _LEFT, _BOX = 110, 30, 150, 22
_STYLE: Final = """
svg{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;background:#fff;color:#1c2430}
text{fill:#1c2430}.small{font-size:10px}.below{fill:#5b6675;font-size:11px}h{font-weight:600}
path,line{fill:none;stroke-opacity:.75}rect,circle{stroke-width:1.2}
.device rect{fill:#d7e8f7;stroke:#0072b2}.switch rect{fill:#fbe3c8;stroke:#d55e00}.nic rect{fill:#e3f0d0;stroke:#6a8f1f}
.other rect{fill:#eef0f3;stroke:#8b96a5}
@media(prefers-color-scheme:dark){svg{background:#12161c}text{fill:#e6ebf2}.below{fill:#9aa6b5}
.device rect{fill:#12324a;stroke:#56b4e9}.switch rect{fill:#4a2a12;stroke:#e69f4f}.nic rect{fill:#2b3a12;stroke:#9cc24a}
.other rect{fill:#262d37;stroke:#6d7a8c}}
"""


class _Connections(NamedTuple):
    """Links between two vertices of one kind, both ways together: a < b."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    of: NDArray[np.int64]
    """Which kind."""
    lanes: NDArray[np.int64]
    """Links in the direction that has more."""


class _Kind(NamedTuple):
    name: str
    bytes_per_s: float
    latency_ns: int


class _Placed(NamedTuple):
    """What is drawn, and where."""

    topology: Topology
    connections: _Connections
    kinds: list[_Kind]
    layer: NDArray[np.int64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]


def fabric_svg(system: System, topology: Topology) -> str:
    """The picture; refuses a fabric that is too large."""
    count = len(topology.kind)
    if count > MOST:
        problem = f"{count:,} devices and switches are too many for a picture; the limit is {MOST:,}"
        raise UsageError(problem, hint="--ranks 16 draws a slice of a system that has levels")
    topology = _named(system, topology)
    found, kinds = _connections(topology)
    layer = _layers(topology, found, kinds)
    x, y = _grid(topology) if not layer.any() else _rows(topology, found, layer)
    placed = _Placed(topology, found, kinds, layer, x, y)
    title = escape(
        f"{system.name}: {len(topology.device):,} devices of {system.device.name}, {len(found.a):,} connections"
    )
    bottom = int(y.max()) + 70
    high, legend = bottom, _legend(kinds, found, bottom)
    wide = int(max(x.max() + _LEFT / 2, 640))
    high += 22 * len(legend) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
        f'role="img" aria-label="{title}"><title>{title}</title><style>{_STYLE}</style>',
        f'<text x="{_MARGIN}" y="24">{title}</text>',
        *(_line(placed, k) for k in range(len(found.a))),
        *(_box(placed, vertex) for vertex in range(count)),
        *_names(placed),
        *legend,
        "</svg>\n",
    ]
    return "\n".join(lines)


def _named(system: System, t: Topology) -> Topology:
    """The dimensions of a product by the names of the system's levels."""
    if system.topology is not None or len(t.dimensions) != len(system.levels):
        return t
    names = {f"{what}{i}": level.name for i, level in enumerate(system.levels) for what in ("dimension", "switch")}

    def vertex_name(vertex: int) -> str:
        prefix, dot, number = t.vertex_name(vertex).rpartition(".")
        return f"{names.get(prefix, prefix)}{dot}{number}"

    return replace(t, link_names=tuple(names.get(n, n) for n in t.link_names), vertex_name=vertex_name)


# -- what is connected -------------------------------------------------------------------------------------------------


def _connections(t: Topology) -> tuple[_Connections, list[_Kind]]:
    src, dst = t.src[: t.wires].astype(np.int64), t.dst[: t.wires].astype(np.int64)
    made = list(
        zip(
            t.link_type[: t.wires].tolist(),
            t.bytes_per_s[: t.wires].tolist(),
            t.latency_ns[: t.wires].tolist(),
            strict=True,
        )
    )
    order = sorted(set(made), key=lambda one: (-one[1], one[0], one[2]))
    number = {one: k for k, one in enumerate(order)}
    kind = np.array([number[one] for one in made], np.int64)
    rows = np.stack((np.minimum(src, dst), np.maximum(src, dst), kind, (src > dst).astype(np.int64)), axis=1)
    each, lanes = np.unique(rows, axis=0, return_counts=True)
    pairs, where = np.unique(each[:, :3], axis=0, return_inverse=True)
    most = np.zeros(len(pairs), np.int64)
    np.maximum.at(most, where.reshape(-1), lanes)
    names = [_Kind(t.link_names[one[0]] or "link", one[1], one[2]) for one in order]
    return _Connections(pairs[:, 0], pairs[:, 1], pairs[:, 2], most), names


def _layers(t: Topology, c: _Connections, kinds: Sequence[_Kind]) -> NDArray[np.int64]:
    """Hops of each vertex from the nearest device. The fastest switches that lead to devices alone are below (-1)."""
    hops = np.full(len(t.kind), -1, np.int64)
    hops[t.device] = 0
    hops[t.kind == VertexKind.DEVICE] = 0
    for row in range(len(hops)):
        ends = np.concatenate((c.b[hops[c.a] == row], c.a[hops[c.b] == row]))
        ends = ends[hops[ends] < 0]
        if not len(ends):
            break
        hops[ends] = row + 1
    hops[hops < 0] = 0
    rate = np.zeros(len(hops))
    for end in (c.a, c.b):
        np.maximum.at(rate, end, np.array([kind.bytes_per_s for kind in kinds])[c.of])
    farthest = np.zeros(len(hops), np.int64)
    np.maximum.at(farthest, c.a, hops[c.b])
    np.maximum.at(farthest, c.b, hops[c.a])
    ends_here = (hops == 1) & (farthest == 0)
    if ends_here.any() and (hops.max() > 1 or len(np.unique(rate[ends_here])) > 1):
        hops[ends_here & (rate == rate[ends_here].max())] = -1
    return hops


# -- where it is -------------------------------------------------------------------------------------------------------


def _grid(t: Topology) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Devices joined to one another: those of one dimension, or of no known one, in a circle; others in a grid."""
    count = len(t.kind)
    sizes = [d.size for d in t.dimensions]
    if len(sizes) < 2:
        radius = max(120.0, 46.0 * count / (2 * np.pi))
        angle = 2 * np.pi * np.arange(count) / count - np.pi / 2
        return _LEFT + radius * (1 + np.cos(angle)), 70 + radius * (1 + np.sin(angle))
    at, x, y = np.arange(count), np.zeros(count), np.zeros(count)
    step = [62.0, 62.0]
    for d, size in enumerate(sizes):
        place, at = at % size, at // size
        if d % 2:
            y, step[1] = y + place * step[1], step[1] * size + 34
        else:
            x, step[0] = x + place * step[0], step[0] * size + 34
    return _LEFT + x, 80 + y


def _rows(t: Topology, c: _Connections, layer: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A row for each layer, in order of what is below it."""
    devices = np.flatnonzero(layer == 0)
    rank = np.full(len(layer), len(layer), np.int64)
    rank[t.device] = np.arange(len(t.device))
    devices = devices[np.argsort(rank[devices], kind="stable")]
    widest = max(int(np.bincount(layer - layer.min()).max()), 1)
    slot = 30.0 if widest > 24 else 46.0
    x = np.zeros(len(layer))
    x[devices] = _LEFT + slot * (np.arange(len(devices)) + 0.5) * widest / len(devices)
    for row in sorted(set(layer.tolist()) - {0}):
        mine, below = np.flatnonzero(layer == row), layer == (0 if row < 0 else row - 1)
        total, count = np.zeros(len(layer)), np.zeros(len(layer))
        for here, there in ((c.a, c.b), (c.b, c.a)):
            on = below[there]
            np.add.at(total, here[on], x[there[on]])
            np.add.at(count, here[on], 1)
        middle = (total / np.maximum(count, 1))[mine]
        order = mine[np.argsort(middle, kind="stable")]
        own = np.sort(middle)
        if len(own) > 1 and np.diff(own).min() < _BOX + 16:
            own = _LEFT + slot * (np.arange(len(mine)) + 0.5) * widest / len(mine)
        x[order] = own
    top = int(layer.max())
    arcs = bool(((layer[c.a] == layer[c.b]) & (layer[c.a] == top)).any()) and top > 0
    return x, np.asarray(80.0 + (60 if arcs else 0) + _LAYER * (top - layer), np.float64)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def _width(kinds: Sequence[_Kind], of: int) -> float:
    fastest = max(kind.bytes_per_s for kind in kinds)
    return max(0.6, 3.2 + np.log10(kinds[of].bytes_per_s / fastest) * 1.3)


def _line(placed: _Placed, k: int) -> str:
    t, c, kinds, layer, x, y = placed
    a, b, of = int(c.a[k]), int(c.b[k]), int(c.of[k])
    ax, ay, bx, by = x[a], y[a], x[b], y[b]
    style = f'stroke="{_COLOURS[of % len(_COLOURS)]}" stroke-width="{_width(kinds, of):.1f}"'
    lanes = f"{c.lanes[k]} x " if c.lanes[k] > 1 else ""
    tip = escape(f"{t.vertex_name(a)} to {t.vertex_name(b)}: {lanes}{_figures(kinds[of])}")
    far = float(np.hypot(bx - ax, by - ay))
    in_grid = not layer.any() and len(t.dimensions) > 1 and far > 100
    if in_grid or (layer.any() and layer[a] == layer[b]):
        # an arc, so that links over several places do not lie on those between
        down = -1 if (layer[a] == layer.max() > 0) or (in_grid and far > 200) else 1
        bow = down * (min(28.0, 0.16 * far) if in_grid else min(130.0, 24 + 0.2 * far))
        mx, my = ((ax + bx) / 2, ay + bow) if abs(ay - by) < 1 else (ax + bow, (ay + by) / 2)
        path = f"M{ax:.0f} {ay:.0f}Q{mx:.0f} {my:.0f} {bx:.0f} {by:.0f}"
    else:
        path = f"M{ax:.0f} {ay:.0f}L{bx:.0f} {by:.0f}"
    return f'<path d="{path}" {style}><title>{tip}</title></path>'


def _box(placed: _Placed, vertex: int) -> str:
    t, c, kinds, layer, x, y = placed
    kind, name = VertexKind(int(t.kind[vertex])), t.vertex_name(vertex)
    ranks = np.flatnonzero(t.device == vertex).tolist()
    label = str(ranks[0]) if ranks else name.rpartition(".")[2][:4]
    sort = {VertexKind.DEVICE: "device", VertexKind.SWITCH: "switch", VertexKind.NIC: "nic"}.get(kind, "other")
    about = f"{name}, rank {ranks[0]}" if ranks else f"{name} ({kind.name.lower()})"
    down, up = _through(c, kinds, layer, vertex)
    if down and up:
        about += f": {format_bandwidth(round(down))} down, {format_bandwidth(round(up))} up"
    wide = _BOX + 10 if sort == "switch" else _BOX
    return (
        f'<g class="{sort}"><title>{escape(about)}</title><rect x="{x[vertex] - wide / 2:.0f}" '
        f'y="{y[vertex] - 10:.0f}" width="{wide}" height="20" rx="5"/><text class="small" x="{x[vertex]:.0f}" '
        f'y="{y[vertex] + 4:.0f}" text-anchor="middle">{escape(label)}</text></g>'
    )


def _through(c: _Connections, kinds: Sequence[_Kind], layer: NDArray[np.int64], vertex: int) -> tuple[float, float]:
    """Bytes per second towards the layers below, and above."""
    found = [0.0, 0.0]
    for here, there in ((c.a, c.b), (c.b, c.a)):
        for k in np.flatnonzero(here == vertex).tolist():
            side = int(layer[there[k]] > layer[vertex])
            if layer[there[k]] != layer[vertex]:
                found[side] += kinds[int(c.of[k])].bytes_per_s * int(c.lanes[k])
    return found[0], found[1]


def _names(placed: _Placed) -> list[str]:
    """What each row holds, and how much more comes from below than goes up."""
    t, c, kinds, layer, _, y = placed
    if not layer.any():
        return []
    lines = []
    for row in sorted(set(layer.tolist()), reverse=True):
        mine = np.flatnonzero(layer == row)
        names = sorted({t.vertex_name(int(v)).rpartition(".")[0] or t.vertex_name(int(v)) for v in mine.tolist()})
        text = ", ".join(names[:2]) + (" ..." if len(names) > 2 else "")
        at = y[mine[0]]
        lines.append(f'<text x="{_MARGIN}" y="{at - 2:.0f}">{escape(text)}</text>')
        below = f"{len(mine):,}"
        down, up = _through(c, kinds, layer, int(mine[0]))
        if row > 0 and down and up:
            below += f", {down / up:.3g}:1" if down > up * 1.001 else ", 1:1"
        lines.append(f'<text class="below" x="{_MARGIN}" y="{at + 13:.0f}">{escape(below)}</text>')
    return lines


def _figures(kind: _Kind) -> str:
    return f"{kind.name}, {format_bandwidth(round(kind.bytes_per_s))} each way, {format_time(kind.latency_ns)}"


def _legend(kinds: Sequence[_Kind], c: _Connections, top: int) -> list[str]:
    lines = []
    for of, kind in enumerate(kinds):
        at, count = top + 22 * of, int(c.lanes[c.of == of].sum())
        lines.append(
            f'<g><path d="M{_MARGIN} {at}h34" stroke="{_COLOURS[of % len(_COLOURS)]}" '
            f'stroke-width="{_width(kinds, of):.1f}"/><text x="{_MARGIN + 44}" y="{at + 4}">'
            f"{escape(_figures(kind))}: {count:,} connections</text></g>"
        )
    return lines
