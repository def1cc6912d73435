"""A part of a trace's graph as an SVG picture that follows the viewer's light or dark theme."""

from __future__ import annotations

import itertools
from html import escape

import numpy as np

from etude.base.errors import UsageError
from etude.tell.view.graph import Subgraph, words
from etude.tell.view.layers import draw
from etude.tell.view.slices import Sort

__all__ = ["svg"]

MOST = 1500
"""Most nodes of a picture; more cannot be read."""

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 182, 40, 18, 40

_STYLE = """
svg{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;background:#fff;color:#1c2430}
rect{stroke-width:1.2}text{fill:#1c2430}path{fill:none;stroke:#8b96a5;stroke-width:1.2}
path.ctrl{stroke-dasharray:4 3}#tip path{stroke:none;fill:#8b96a5}
.compute rect{fill:#d7e8f7;stroke:#0072b2}.communication rect{fill:#fbe3c8;stroke:#d55e00}
.memory rect{fill:#d5efe5;stroke:#009e73}.copy rect{fill:#e3f0d0;stroke:#6a8f1f}.host rect{fill:#ece7f4;stroke:#7a68a6}
.other rect,.none rect{fill:#eef0f3;stroke:#8b96a5}.centre rect{stroke-width:3.5}
.legend text,text.below{fill:#5b6675}text.below{font-size:10.5px}
@media(prefers-color-scheme:dark){svg{background:#12161c}text{fill:#e6ebf2}path{stroke:#6d7a8c}
#tip path{fill:#6d7a8c}.compute rect{fill:#12324a;stroke:#56b4e9}.communication rect{fill:#4a2a12;stroke:#e69f4f}
.memory rect{fill:#0f3a2d;stroke:#35c492}.copy rect{fill:#2b3a12;stroke:#9cc24a}.host rect{fill:#2c2540;stroke:#a996d6}
.other rect,.none rect{fill:#262d37;stroke:#6d7a8c}.legend text,text.below{fill:#9aa6b5}}
"""


def svg(part: Subgraph, title: str) -> str:
    """The picture; refuses a graph that is too large."""
    if len(part) > MOST:
        hint = "--around NODE --hops 3 shows the part around a node; .dot and .graphml have no limit"
        raise UsageError(f"{len(part):,} nodes are too many for a picture; the limit is {MOST:,}", hint=hint)
    found = draw(len(part), part.before, part.after, _WIDTH + _GAP_X)
    x = found.x + _WIDTH / 2 + 24
    y = found.layer * float(_HEIGHT + _GAP_Y) + 56
    wide = int(max(x.max(initial=0) + _WIDTH / 2 + 24, 520))
    high = int(y.max(initial=0) + _HEIGHT + 24)
    title = escape(title)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
        f'role="img" aria-label="{title}"><title>{title}</title><style>{_STYLE}</style>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 1 8 4 0 7z"/></marker></defs>',
        *_legend(part),
    ]
    for path, is_data in zip(found.path, part.is_data.tolist(), strict=True):
        kind = "data" if is_data else "ctrl"
        lines.append(f'<path class="{kind}" marker-end="url(#tip)" d="{_curve(path, x, y, len(part))}"/>')
    for i, (label, below, told) in enumerate(words(part)):
        left, top = x[i] - _WIDTH / 2, y[i]
        mark = " centre" if i == part.centre else ""
        lines.append(
            f'<g class="{Sort(int(part.sort[i])).label}{mark}"><title>{told}</title>'
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
            f'<text x="{x[i]:.0f}" y="{top + 17:.0f}" text-anchor="middle">{label}</text>'
            f'<text class="below" x="{x[i]:.0f}" y="{top + 32:.0f}" text-anchor="middle">{below}</text></g>'
        )
    return "\n".join([*lines, "</svg>\n"])


def _curve(path: list[int], x: np.ndarray, y: np.ndarray, nodes: int) -> str:
    """From the foot of the first to the head of the last, smooth through the bends."""
    points = [(x[k], y[k] + (_HEIGHT / 2 if k >= nodes else 0)) for k in path]
    points[0] = (points[0][0], points[0][1] + _HEIGHT)
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.0f}"]
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        bend = (by - ay) / 2
        parts.append(f"C{ax:.0f} {ay + bend:.0f} {bx:.0f} {by - bend:.0f} {bx:.0f} {by:.0f}")
    return "".join(parts)


def _legend(part: Subgraph) -> list[str]:
    there = [Sort(s) for s in np.unique(part.sort).tolist()]
    lines, left = ['<g class="legend">'], 24
    for sort in there:
        lines.append(f'<g class="{sort.label}"><rect x="{left}" y="18" width="14" height="14" rx="3"/></g>')
        lines.append(f'<text x="{left + 20}" y="30">{sort.label}</text>')
        left += 40 + 8 * len(sort.label)
    if (~part.is_data).any():
        lines.append(f'<path class="ctrl" d="M{left} 25h26"/><text x="{left + 32}" y="30">control</text>')
        left += 100
    if part.cut:
        lines.append(f'<text x="{left}" y="30">{part.cut:,} nodes next to these are not shown</text>')
    return [*lines, "</g>"]
