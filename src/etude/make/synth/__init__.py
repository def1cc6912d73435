"""Synthesis: a small model learned from jobs, and jobs of any size generated from it, without names, shapes or code."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.synth.inventory import KEPT as KEPT
    from etude.make.synth.inventory import about as about
    from etude.make.synth.learned import read as read
    from etude.make.synth.learned import write as write
    from etude.make.synth.learning import hidden as hidden
    from etude.make.synth.learning import learn as learn
    from etude.make.synth.making import make as make
    from etude.make.synth.options import MakeOptions as MakeOptions

__getattr__ = face(__name__)
