"""What a search says of itself in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.base.notebook import card, note, records
from etude.decide.search.page import best_name, frontier_plot, scores_of, shown_value
from etude.tell.view.lengths import in_notebook

if TYPE_CHECKING:
    from etude.decide.search.found import Found


def found_html(found: Found) -> str:
    """The best, how many were tried, the frontier as a plot where there are two scores, and the best rows."""
    scores = scores_of(found)
    facts = [(name.replace("_", " "), shown_value(name, found.best[name])) for name in scores]
    facts += [("candidates", f"{found.space:,}"), ("tried", f"{found.tried:,}")]
    facts += [("pruned", f"{sum(found.pruned.values()):,}")]
    plot = frontier_plot(found, scores)
    picture = in_notebook(plot.body) if plot else ""
    rows = records((found.rows or found.frontier)[:10])
    return card(
        "search", f"Best: {best_name(found, found.best)}", facts, picture, rows, *(note(told) for told in found.notes)
    )
