"""Studies: what a design changes, as one file that anybody can run again: `etude.study("my.yaml").run()`.

spec, templates     the file, read and checked; parameters put into commands and files
space               the points of a sweep: grids, lists, conditions, samples
points              what each point runs, and its key
tasks, workers      commands of points, run once each, in processes of this machine; `on_ray`, on a cluster
results, sweep      what was found, by key, so that a run that was cut off goes on
stats, compare      pairs, intervals, tests
expressions, checks what a study says must hold
run, page, folder   all of it, and what is left behind for the reader
trust               what a study may run without `--trust`
library, gallery    published systems as studies
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.decide.study.library import entries as entries
    from etude.decide.study.library import template as template
    from etude.decide.study.run import Outcome as Outcome
    from etude.decide.study.run import Study as Study
    from etude.decide.study.run import evaluate as evaluate
    from etude.decide.study.run import study as study
    from etude.decide.study.tasks import answer as answer
    from etude.decide.study.tasks import serve as serve

__getattr__ = face(__name__)
