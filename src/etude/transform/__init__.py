"""Jobs from jobs."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.transform.anonymising import AnonymiseOptions as AnonymiseOptions
    from etude.transform.anonymising import anonymise as anonymise
    from etude.transform.anonymising import kept as kept
    from etude.transform.device_times import DeviceTimes as DeviceTimes
    from etude.transform.device_times import with_device_times as with_device_times
    from etude.transform.durations import with_durations as with_durations

__getattr__ = face(__name__)
