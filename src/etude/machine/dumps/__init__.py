"""Graphs as tools of the field write them: NCCL's topology of a node, InfiniBand's fabric with its routing tables."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.machine.dumps.files import read_dump as read_dump
    from etude.machine.dumps.files import sort_of as sort_of

__getattr__ = face(__name__)
