"""Pipeline schedules: the order of actions on each pipeline rank. A new one is a file, and a line in `by_name`."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.schedules.by_name import parse as parse
    from etude.make.generate.schedules.by_name import schedule as schedule
    from etude.make.generate.schedules.by_name import steady_from as steady_from
    from etude.make.generate.schedules.pipeline import PipelineSchedule as PipelineSchedule
    from etude.make.generate.schedules.pipeline import in_flight as in_flight
    from etude.make.generate.schedules.pipeline import times as times

__getattr__ = face(__name__)
