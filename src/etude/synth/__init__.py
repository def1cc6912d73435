"""Synthesis: a small model learned from jobs, and jobs of any size generated from it, without names, shapes or code."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.synth.inventory import KEPT as KEPT
    from etude.synth.inventory import about as about
    from etude.synth.learned import read as read
    from etude.synth.learned import write as write
    from etude.synth.learning import hidden as hidden
    from etude.synth.learning import learn as learn
    from etude.synth.making import MakeOptions as MakeOptions
    from etude.synth.making import make as make

__getattr__ = face(__name__)
