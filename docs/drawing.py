"""Small SVG pictures for the pages: bars, lanes, curves. They follow the reader's light or dark scheme."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """text{font:12px system-ui,sans-serif;fill:#333}.t{font-size:14px;font-weight:600}.s{fill:#666;font-size:11px}
.g{stroke:#ddd}.a{stroke:#999}.l{fill:none;stroke-width:2}
.bg{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.g{stroke:#444}.a{stroke:#777}.bg{fill:#1e2129}}"""
COLOURS = {
    "compute": "#4c78a8", "communication": "#f58518", "memory": "#72b7b2", "idle": "#bab0ac", "host": "#9d755d",
    "bad": "#e45756", "good": "#54a24b", "other": "#b279a2", "launch": "#eeca3b",
}  # fmt: skip
CYCLE = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#72b7b2", "#9d755d", "#eeca3b")
WIDTH = 760


@dataclass(frozen=True)
class Bar:
    """A bar: what stands before it, and its pieces, each (colour or its name, length, label inside)."""

    name: str
    pieces: Sequence[tuple[str, float, str]]
    after: str = ""


def colour(name: str) -> str:
    return COLOURS.get(name, name)


def text(x: float, y: float, what: str, *, kind: str = "", anchor: str = "start") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(what)}</text>'


def rect(x: float, y: float, width: float, height: float, fill: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.3):.1f}" height="{height:.1f}"'
    return f'<rect {size} fill="{colour(fill)}">{inside}</rect>' if inside else f'<rect {size} fill="{colour(fill)}"/>'


def picture(title: str, height: float, parts: Sequence[str]) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            f'aria-label="{escape(title)}"><style>{STYLE}</style>')  # fmt: skip
    back = f'<rect class="bg" width="{WIDTH}" height="{height:.0f}" rx="6"/>'
    return "\n".join([head, back, text(16, 24, title, kind="t"), *parts, "</svg>"]) + "\n"


def legend(entries: Sequence[tuple[str, str]], y: float, x: float = 16) -> list[str]:
    """Squares with names, (name, colour) each."""
    parts = []
    for name, fill in entries:
        parts += [rect(x, y - 9, 10, 10, fill), text(x + 15, y, name, kind="s")]
        x += 30 + 6.2 * len(name)
    return parts


def bars(title: str, rows: Sequence[Bar], entries: Sequence[tuple[str, str]] = (), *, left: float = 150) -> str:
    """Stacked bars below one another on one scale."""
    full = max(sum(piece[1] for piece in row.pieces) for row in rows) or 1
    room = 24 + 6.2 * max(len(row.after) for row in rows)
    scale, y, parts = (WIDTH - left - room) / full, 42.0, []
    if entries:
        parts, y = legend(entries, y + 4), y + 20
    for row in rows:
        x = left
        parts.append(text(left - 8, y + 15, row.name, anchor="end"))
        for fill, length, label in row.pieces:
            parts.append(rect(x, y + 2, length * scale, 18, fill, label))
            x += length * scale
        parts.append(text(x + 8, y + 15, row.after, kind="s"))
        y += 25
    return picture(title, y + 12, parts)


def lanes(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, float, str, str]]]], show: Callable[[float], str],
          entries: Sequence[tuple[str, str]] = (), *, left: float = 110, labels: bool = False) -> str:  # fmt: skip
    """Work over time, a row for each lane: (start, end, colour, label) of each piece."""
    begin = min(piece[0] for _, pieces in rows for piece in pieces)
    end = max(piece[1] for _, pieces in rows for piece in pieces)
    scale, y, parts = (WIDTH - left - 24) / (end - begin or 1), 42.0, []
    if entries:
        parts, y = legend(entries, y + 4), y + 20
    top = y
    for name, pieces in rows:
        parts.append(text(left - 8, y + 15, name, anchor="end"))
        for start, stop, fill, label in pieces:
            x, width = left + (start - begin) * scale, (stop - start) * scale
            parts.append(rect(x, y + 2, width - (0.6 if width > 3 else 0), 18, fill, "" if labels else label))
            if labels and width > 6 * len(label):
                parts.append(f'<text x="{x + width / 2:.1f}" y="{y + 15:.1f}" text-anchor="middle" '
                             f'style="fill:#fff;font-size:10px">{escape(label)}</text>')  # fmt: skip
        y += 24
    for tick in ticks(0, end - begin):
        x = left + tick * scale
        parts += [f'<path class="g" d="M{x:.1f} {top:.0f}V{y:.0f}" opacity=".6"/>',
                  text(x, y + 14, show(tick), kind="s", anchor="middle")]  # fmt: skip
    return picture(title, y + 26, parts)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round figures from low to high."""
    span = (high - low) or 1
    unit = 10 ** math.floor(math.log10(span / most))
    step = next(unit * k for k in (1, 2, 5, 10) if span / (unit * k) <= most)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axis:
    """An axis: its label, its bounds, how figures are written, whether it is logarithmic."""

    label: str
    low: float
    high: float
    show: Callable[[float], str] = lambda value: f"{value:g}"
    log: bool = False

    def place(self, value: float) -> float:
        """From 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if not self.log:
            return ticks(self.low, self.high)
        found = [10.0**k for k in range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high)) + 1)]
        return found[:: max(1, len(found) // 6)]


def plot(title: str, x: Axis, y: Axis, lines: Mapping[str, Sequence[tuple[float, float]]], *,
         points: Sequence[tuple[float, float, str, str]] = (), steps: bool = False, height: float = 320) -> str:  # fmt: skip
    """Curves by name, and single points (x, y, colour, label)."""
    left, right, top, bottom = 74.0, WIDTH - 24.0, 66.0, height - 46.0

    def at(px: float, py: float) -> tuple[float, float]:
        return left + x.place(px) * (right - left), bottom - y.place(py) * (bottom - top)

    parts = legend([(name, CYCLE[i % 8]) for i, name in enumerate(lines) if name], 48)
    for tick in x.ticks():
        px = at(tick, y.low)[0]
        parts += [
            f'<path class="g" d="M{px:.1f} {top}V{bottom}"/>',
            text(px, bottom + 16, x.show(tick), kind="s", anchor="middle"),
        ]
    for tick in y.ticks():
        py = at(x.low, tick)[1]
        parts += [
            f'<path class="g" d="M{left} {py:.1f}H{right}"/>',
            text(left - 6, py + 4, y.show(tick), kind="s", anchor="end"),
        ]
    parts += [text((left + right) / 2, height - 10, x.label, kind="s", anchor="middle"),
              f'<text class="s" transform="translate(14 {(top + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
              f"{escape(y.label)}</text>"]  # fmt: skip
    for i, line in enumerate(lines.values()):
        parts.append(f'<path class="l" stroke="{CYCLE[i % 8]}" d="{_path([at(*p) for p in line], steps)}"/>')
    for px, py, fill, label in points:
        cx, cy = at(px, py)
        parts.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour(fill)}"><title>{escape(label)}</title></circle>'
        )
    return picture(title, height, parts)


def _path(places: Sequence[tuple[float, float]], steps: bool) -> str:
    out = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for px, py in places[1:]:
        out += f"H{px:.1f}V{py:.1f}" if steps else f"L{px:.1f} {py:.1f}"
    return out


@dataclass(frozen=True)
class Box:
    """A box of a flow: its column, its row (also between two), its name, and what stands below the name."""

    column: float
    row: float
    name: str
    below: str = ""


def flow(
    title: str, boxes: Sequence[Box], arrows: Sequence[tuple[int, int]], *, wide: float = 126, high: float = 40
) -> str:
    """Boxes and arrows between them, by their places in `boxes`."""
    columns, rows = max(box.column for box in boxes), max(box.row for box in boxes)
    across, down, top = (WIDTH - 32 - wide) / columns, high + 18, 44.0
    parts = []

    def at(box: Box) -> tuple[float, float]:
        return 16 + box.column * across, top + box.row * down

    for start, end in arrows:
        (x0, y0), (x1, y1) = at(boxes[start]), at(boxes[end])
        if boxes[start].column == boxes[end].column:
            line = f"M{x0 + wide / 2:.1f} {y0 + high:.1f}V{y1 - 5:.1f}"
            head = f"M{x1 + wide / 2 - 4:.1f} {y1 - 7:.1f}l4 6l4 -6"
        else:
            begin, tip, middle = x0 + wide, x1 - 2, (x0 + wide + x1) / 2
            line = f"M{begin:.1f} {y0 + high / 2:.1f}C{middle:.1f} {y0 + high / 2:.1f} {middle:.1f} {y1 + high / 2:.1f} {tip:.1f} {y1 + high / 2:.1f}"
            head = f"M{tip - 6:.1f} {y1 + high / 2 - 4:.1f}l6 4l-6 4"
        parts.append(f'<path class="a" fill="none" d="{line}{head}"/>')
    for box in boxes:
        x, y = at(box)
        noun = box.name[0].isupper()
        fill = f'fill="{COLOURS["compute"]}" fill-opacity="{0.45 if noun else 0.15}"'
        parts += [f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.0f}" height="{high:.0f}" rx="5" {fill}/>',
                  text(x + wide / 2, y + 17, box.name, anchor="middle"),
                  text(x + wide / 2, y + 32, box.below, kind="s", anchor="middle")]  # fmt: skip
    return picture(title, top + rows * down + high + 16, parts)
