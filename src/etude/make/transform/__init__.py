"""Jobs from jobs."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.transform.anonymising import AnonymiseOptions as AnonymiseOptions
    from etude.make.transform.anonymising import anonymise as anonymise
    from etude.make.transform.anonymising import kept as kept
    from etude.make.transform.device_times import with_device_times as with_device_times
    from etude.make.transform.durations import with_durations as with_durations
    from etude.make.transform.framework_times import with_framework_times as with_framework_times
    from etude.make.transform.host_nodes import with_host as with_host
    from etude.make.transform.operator_times import with_operator_times as with_operator_times

__getattr__ = face(__name__)
