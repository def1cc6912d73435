"""Pipeline schedules: the order of actions on each pipeline rank. A new one is a file, and a line in `by_name`."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.generate.schedules.by_name import parse as parse
    from etude.generate.schedules.by_name import schedule as schedule
    from etude.generate.schedules.by_name import steady_from as steady_from
    from etude.generate.schedules.pipeline import PipelineSchedule as PipelineSchedule
    from etude.generate.schedules.pipeline import in_flight as in_flight
    from etude.generate.schedules.pipeline import times as times

__getattr__ = face(__name__)
