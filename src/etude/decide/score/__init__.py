"""Score: how right predictions are about what was measured, row by row.

source            what is at a path: columns of a CSV file, the head of another, files of a folder
kind, kinds       what a kind of file is, and the table of all of them
training, serving, published, diffusion, runs, requests, operators, collectives, energy, contention, offload, recordings
                  one kind each
scoring, summary  the rows of a file, measured and predicted; the errors of each figure
written           rows as a table, for a file

A new kind is a file with a `Kind`, and its row in `kinds`.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.decide.score.kind import ScoreKind as ScoreKind
    from etude.decide.score.kinds import KINDS as KINDS
    from etude.decide.score.scoring import Scored as Scored
    from etude.decide.score.scoring import document as document
    from etude.decide.score.scoring import prepared as prepared
    from etude.decide.score.scoring import score as score
    from etude.decide.score.scoring import scored_files as scored_files
    from etude.decide.score.written import write_rows as write_rows

__getattr__ = face(__name__)
