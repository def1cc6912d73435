"""One HTML file that needs nothing else: style, script and data are in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from etude.tell.view.embedded import Packed
from etude.tell.view.lengths import sizes
from etude.tell.view.markup import Markup, digest, escaped, joined
from etude.tell.view.sentences import Sentence, data_element, html_of
from etude.tell.view.slices import Sort

__all__ = ["MARKS", "Figure", "Page", "PageSection", "Told", "policy_of", "render", "timeline"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the summary."""

    label: str
    value: str
    note: str = ""
    sort: str = ""
    """The colour of the label: `compute`, `communication`, `memory`, `idle`."""


@dataclass(frozen=True, slots=True)
class Told:
    """One finding in plain words, its evidence, and the section that shows why."""

    tone: str
    """`bad`, `warn`, `good` or `info`."""
    what: str
    why: str = ""
    section: str = ""
    cost_ns: int | None = None
    """Time of the run that it accounts for; None if it is not about time."""
    cost: str = ""
    """The same as text."""
    asked: str = ""
    """The expression of `cost_ns`."""


_EMPTY = Markup()


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page. `body` is HTML made by `charts`; if it is empty, `empty` says why. All else is text;
    `lead` may be HTML too."""

    id: str
    title: str
    lead: str
    body: Markup = _EMPTY
    empty: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    subtitle: str
    verdict: str
    cards: tuple[Figure, ...] = ()
    told: tuple[Told, ...] = ()
    sections: tuple[PageSection, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """Facts about the input, shown at the end."""
    notes: tuple[str, ...] = field(default=())
    made_by: str = "Etude"


MARKS = {"bad": "▲", "warn": "◆", "good": "✓", "info": "●"}
_SAID = {"bad": "Problem", "warn": "Warning", "good": "Good", "info": "Note"}
_LOGO = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><rect x="1" y="3" width="11" height="3.4" rx="1.7" class="f-compute"/>'
    '<rect x="5" y="8.3" width="13" height="3.4" rx="1.7" class="f-communication"/>'
    '<rect x="2" y="13.6" width="8" height="3.4" rx="1.7" class="f-memory"/></svg>'
)


def policy_of(text: str) -> str:
    """The policy that a page of `render` declares, for a server that sends it."""
    return text.split('http-equiv="Content-Security-Policy" content="', 1)[1].split('"', 1)[0]


def render(page: Page) -> str:
    """The whole file."""
    shown = [("findings", "Findings")] * bool(page.told) + [(s.id, s.title) for s in page.sections]
    if page.facts or page.notes:
        shown.append(("about", "About"))
    links = "".join(f'<li><a href="#{escape(i)}">{escape(t)}</a></li>' for i, t in shown)
    sections = joined(map(_section, page.sections))
    style, script = _asset("page.css") + sizes(sections), _asset("page.js") + _asset("timeline.js")
    return f"""<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src {digest(style)}; \
script-src {digest(script)}; img-src data:; base-uri 'none'">
<title>{escape(page.title)} · Etude report</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header class="top"><div class="wrap">
<div class="brand">{_LOGO}<span>Etude report</span><span class="tools">\
<button type="button" data-help aria-haspopup="dialog">Help</button>\
<button id="theme" type="button">Light / dark</button><button id="print" type="button">Print</button></span></div>
<h1>{html_of(page.title)}</h1>
<p class="sub">{html_of(page.subtitle)}</p>
<p class="verdict">{html_of(page.verdict)}</p>
<div class="cards">{"".join(map(_card, page.cards))}</div>
</div></header>
<nav class="sections" aria-label="Sections"><div class="wrap"><ul>{links}</ul></div></nav>
<main class="wrap" id="main">
<noscript><p>The timeline needs JavaScript; everything else works without it.</p></noscript>
{_told(page.told)}
{sections}
{_about(page)}
</main>
<footer><div class="wrap">Made by {escape(page.made_by)}. This page needs no network and sends nothing.</div></footer>
{_help()}
<div id="tip" role="status" aria-live="polite"></div>
<script>{script}</script>
</body>
</html>
"""


KEYS = (
    (("W", "S", "+", "−"), "zoom in and out; also Ctrl and the wheel"),
    (("A", "D"), "move left and right; also by dragging"),
    (("←", "→"), "from slice to slice"),
    (("↑", "↓"), "from lane to lane"),
    (("Enter",), "zoom to the chosen slice; also a double-click"),
    (("0", "Home"), "the whole run"),
    (("/",), "find by name"),
    (("M",), "sum up what is in view; Shift and dragging, or dragging the axis, sums up an area"),
    (("H", "P"), "show host threads, mark the critical path"),
    (("Esc",), "clear the selection, leave the search"),
    (("?",), "this help"),
)


def _help() -> str:
    rows = "".join(f"<dt>{' '.join(f'<kbd>{k}</kbd>' for k in keys)}</dt><dd>{what}</dd>" for keys, what in KEYS)
    return (
        '<dialog id="help" aria-labelledby="help-title"><h2 id="help-title">Keys of the timeline</h2>'
        f"<p>Tab goes to the timeline; then</p><dl>{rows}</dl>"
        "<p>Click a table heading to sort. Point at points and bars for details.</p>"
        '<form method="dialog"><button type="submit" autofocus>Close</button></form></dialog>'
    )


def _asset(name: str) -> str:
    return files("etude.tell.view").joinpath("assets", name).read_text(encoding="utf-8")


def _card(card: Figure) -> str:
    dot = f'<i class="dot s-{escape(card.sort)}"></i>' if card.sort else ""
    number, space, unit = card.value.partition(" ")
    shown = Markup(f"{escape(number)}<small>{escape(unit)}</small>" if space else escape(number))
    value = data_element(card.value.asked[0], shown) if isinstance(card.value, Sentence) and card.value.asked else shown
    note = f'<div class="note">{html_of(card.note)}</div>' if card.note else ""
    label = f'<div class="label">{dot}{escape(card.label)}</div>'
    return f'<div class="card">{label}<div class="value">{value}</div>{note}</div>'


def _told(told: tuple[Told, ...]) -> str:
    if not told:
        return ""
    rows = []
    for t in told:
        why = f'<div class="why">{html_of(t.why)}</div>' if t.why else ""
        go = f'<a class="go" href="#{escape(t.section)}">see why</a>' if t.section else ""
        mark = f'<span class="mark" role="img" aria-label="{_SAID[t.tone]}">{MARKS[t.tone]}</span>'
        cost = f'<span class="cost">{html_of(t.cost)}</span>' if t.cost else ""
        what = f'<div class="what">{html_of(t.what)}</div>'
        rows.append(f'<li class="tone-{t.tone}">{mark}{what}<div class="side">{cost}{go}</div>{why}</li>')
    body = "".join(rows)
    return f'<section class="bare" id="findings"><h2>Findings</h2><ul class="findings">{body}</ul></section>'


def _section(section: PageSection) -> Markup:
    body = escaped(section.body) or f'<p class="empty">{html_of(section.empty)}</p>'
    lead = f'<p class="lead">{html_of(section.lead)}</p>' if section.lead and section.body else ""
    return Markup(f'<section id="{escape(section.id)}"><h2>{escape(section.title)}</h2>{lead}{body}</section>\n')


def _about(page: Page) -> str:
    if not page.facts and not page.notes:
        return ""
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{html_of(v)}</dd>" for k, v in page.facts)
    notes = "".join(f"<li>{html_of(n)}</li>" for n in page.notes)
    said = f"<h3>Notes</h3><ul>{notes}</ul>" if notes else ""
    return f'<section id="about"><h2>About this report</h2><dl class="facts">{facts}</dl>{said}</section>'


def timeline(packed: Packed, label: str) -> Markup:
    """The zoomable timeline: its canvas, its buttons, its data."""
    if not packed.kept:
        return Markup()
    keys = "<kbd>W</kbd> <kbd>S</kbd> zoom, <kbd>A</kbd> <kbd>D</kbd> move, arrows select, <kbd>?</kbd> all keys"
    buttons = (("in", "+", "Zoom in"), ("out", "−", "Zoom out"), ("left", "←", "Move left"),
               ("right", "→", "Move right"), ("fit", "Fit", "Show the whole run"))  # fmt: skip
    bar = "".join(
        f'<button type="button" data-do="{d}" aria-label="{a}" title="{a}">{t}</button>' for d, t, a in buttons
    )
    sorts = "".join(f'<li><i class="dot s-{s.label}"></i>{s.label}</li>' for s in packed.sorts if s != Sort.NONE)
    empty = "Point at a slice, or click it, to see what it is; double-click zooms to it."
    return Markup(f"""<ul class="legend">{sorts}</ul><div class="timeline"><div class="bar">{bar}\
<button type="button" data-do="host" aria-pressed="true">Host threads</button>\
<button type="button" data-do="path" aria-pressed="false">Critical path</button>\
<button type="button" data-do="area" aria-pressed="false" title="Drag over the timeline to sum up an area; also with \
Shift">Select area</button>\
<input type="search" placeholder="Find by name" aria-label="Find slices by name">\
<span class="found" role="status"></span>\
<details class="ranks"><summary>Ranks</summary><div class="menu"><input type="text" placeholder="0-3, 8" \
aria-label="Ranks to show, for example 0-3, 8; empty is all"><button type="button" data-do="all">All</button>\
<button type="button" data-do="none">None</button><div class="list"></div></div></details>\
<span class="hint">{keys}</span></div>
<canvas class="over" aria-hidden="true"></canvas>
<div class="view"><canvas class="main" tabindex="0" role="application" aria-label="{escape(label)}"></canvas>\
<div class="spacer"></div></div>
<div class="area" role="status" aria-live="polite" hidden></div>
<div class="picked" role="status" aria-live="polite" data-empty="{empty}">{empty}</div>
<script type="application/octet-stream" class="packed">{packed.text}</script></div>""")
