"""Sections of analyses that are declared in analyse/catalogue.py, from their tables and columns alone."""

from __future__ import annotations

from dataclasses import dataclass

from etude.analyse.catalogue import AnalysisEntry
from etude.tell.report.subject import Subject
from etude.tell.report.words import FORMS
from etude.tell.view.charts import Heading, table
from etude.tell.view.page import PageSection


@dataclass(frozen=True, slots=True)
class DeclaredSection:
    """The place of an analysis on the page."""

    entry: AnalysisEntry

    def section(self, subject: Subject) -> PageSection:
        rows = self.entry.function()(subject.run).to_pylist()
        columns = [
            Heading(name, name.removesuffix("_ns").replace("_", " "), FORMS[form], number=form not in TEXTS)
            for name, form in self.entry.columns.items()
        ]
        about = f"{self.entry.question[:1].upper()}{self.entry.question[1:]}."
        if not rows:
            return PageSection(self.entry.command, self.entry.title, about, empty="Nothing to show.")
        return PageSection(self.entry.command, self.entry.title, about, table(f"t-{self.entry.command}", rows, columns))


TEXTS = ("text", "capital", "operation", "operator", "title")
"""Formats of words; all others are of numbers."""
