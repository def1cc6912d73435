"""The picture of every published figure of the gallery over ours, a row for each study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from drawing import WIDTH, colour, legend, picture, text

LEFT, RIGHT, TOP, STEP = 150.0, WIDTH - 262.0, 96.0, 15.0
LEAST, MOST = 1 / 32, 32.0
COLOURS = {
    "contradicts": "bad",
    "weaker": "communication",
    "stronger": "compute",
    "agrees": "good",
    "not asked": "idle",
}


@dataclass(frozen=True)
class Dot:
    """A claim: its study, its name, ours over the published figure (none: a statement), its verdict, and why."""

    study: str
    figure: str
    ratio: float | None
    verdict: str
    why: str


def ratio(ours: float, published: float | Sequence[float]) -> float:
    """Ours over the nearest figure of those that were published, which is 1 within a range; negative: another sign."""
    low, high = sorted(published) if isinstance(published, Sequence) else (published, published)
    near = min(max(ours, low), high)
    return 1.0 if ours == near else ours / near if near else math.copysign(math.inf, ours)


def place(value: float) -> float:
    """On a scale of logarithms; what lies outside, or has another sign, is at its edge."""
    clipped = min(max(value, LEAST), MOST)
    return LEFT + (math.log(clipped / LEAST) / math.log(MOST / LEAST)) * (RIGHT - LEFT)


def chart(dots: Sequence[Dot]) -> str:
    """Statements are squares in a column of their own; of those that contradict, the reason stands at the right."""
    studies = sorted({dot.study for dot in dots})
    high = TOP + STEP * len(studies)
    parts = legend(list(COLOURS.items()), 48)
    parts += [text(RIGHT + 14, 76, "statement", kind="s"), text(RIGHT + 82, 76, "contradicts because", kind="s")]
    for tick in (1 / 32, 1 / 8, 1 / 2, 1.0, 2.0, 8.0, 32.0):
        x = place(tick)
        label = f"1/{1 / tick:.0f}" if tick < 1 else f"{tick:.0f}"
        parts += [f'<path class="{"a" if tick == 1 else "g"}" d="M{x:.1f} {TOP - 12:.0f}V{high:.0f}"/>']
        parts += [text(x, TOP - 18, label, kind="s", anchor="middle")]
    for row, study in enumerate(studies):
        y, own = TOP + STEP * row, [dot for dot in dots if dot.study == study]
        parts.append(text(LEFT - 8, y + 4, study, kind="s", anchor="end"))
        squares = 0
        for dot in own:
            title = f"<title>{escape(f'{dot.figure}: {dot.verdict}. {dot.why}'.strip())}</title>"
            fill = colour(COLOURS[dot.verdict])
            if dot.ratio is None:
                x = RIGHT + 14 + 10 * squares
                squares += 1
                parts.append(f'<rect x="{x:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{fill}">{title}</rect>')
            else:
                parts.append(f'<circle cx="{place(dot.ratio):.1f}" cy="{y:.1f}" r="4" fill="{fill}">{title}</circle>')
        wrong = [dot for dot in own if dot.verdict == "contradicts"]
        if wrong:
            parts.append(text(RIGHT + 82, y + 4, _cut(wrong[0].why), kind="s"))
    return picture("Ours over the published figure, every claim of the gallery", high + 14, parts)


def _cut(words: str, most: int = 31) -> str:
    return words if len(words) <= most else words[:most].rsplit(" ", 1)[0] + " ..."


def claims() -> str:
    from generate import kept_claims

    dots = []
    for study, _, claim, found in kept_claims():
        ours, published = found.get("ours"), found.get("published")
        share = None if published is None or ours is None else ratio(ours, published)
        dots.append(Dot(study, claim.figure, share, found["verdict"], claim.why))
    return chart(dots)


PICTURES = {"claims": claims}
