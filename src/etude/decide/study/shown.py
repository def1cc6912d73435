"""What a study and its outcome say of themselves in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.base.notebook import card, checks, note, records
from etude.decide.study.page import drawn, verdict
from etude.tell.view.lengths import in_notebook

if TYPE_CHECKING:
    from etude.decide.study.run import Outcome, Study


def outcome_html(found: Outcome) -> str:
    """The verdict, the checks, a plot of the first metric that has one, and the rows."""
    spec = found.spec
    failed = sum(bool(row["error"]) for row in found.points)
    facts = [
        ("points", len(found.points)),
        ("failed", failed),
        ("variants", len(spec.variants)),
        ("seeds", len(spec.seeds)),
    ]
    plots = (drawn(found, metric) for metric in spec.metrics)
    picture = next((one for one in plots if one is not None), None)
    rows = [{k: v for k, v in row.items() if k != "commands"} for row in found.rows]
    body = f"{note(picture.lead)}{in_notebook(picture.body)}" if picture else ""
    title = str(spec.facts.get("title") or spec.name)
    return card("study", title, facts, note(verdict(found)), checks(found.checks), body, records(rows),
                *(note(told) for told in found.notes))  # fmt: skip


def study_html(study: Study) -> str:
    """What it will run."""
    spec = study.spec
    points = max(1, len(spec.space.points())) * max(1, len(spec.variants)) * max(1, len(spec.seeds))
    facts = [
        ("variants", list(spec.variants)),
        ("axes", list(spec.space.names)),
        ("points", points),
        ("metrics", [metric.name for metric in spec.metrics]),
    ]
    return card("study, not run", str(spec.facts.get("title") or spec.name), facts, note("`.outcome()` runs it"))
