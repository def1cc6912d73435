"""Records what a training script does: execution trace, profiler trace, manifest, for every rank.

from etude.capture.collect import torch as collect
with collect.trace("run/", steps=3):
    train()

Nothing here imports PyTorch before a recording is asked for.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.collect.delayed import launch_delayed as launch_delayed
    from etude.capture.collect.delays import Delay as Delay
    from etude.capture.collect.delays import DelayKind as DelayKind
    from etude.capture.collect.delays import DelayPlan as DelayPlan
    from etude.capture.collect.launcher import LaunchedProgram as LaunchedProgram
    from etude.capture.collect.launcher import launch as launch
    from etude.capture.collect.moments import Moment as Moment
    from etude.capture.collect.options import CollectOptions as CollectOptions

__getattr__ = face(__name__)
