"""Collectives and messages: an algorithm is a file, with its closed form, its schedule and its layout.

table       the algorithms that there are, one line each: closed forms and networks both read it
algorithm   what each of them is
plan        what closed forms are made of
steps       what schedules are made of; trees: those that go along a tree
times       closed forms: how long a collective takes, and which algorithm is the fastest
messages    closed forms of single messages
schedules   transfers of any algorithm on any number of members
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.collectives.messages import p2p_start_ns as p2p_start_ns
    from etude.cost.collectives.messages import p2p_time_ns as p2p_time_ns
    from etude.cost.collectives.schedules import schedule as schedule
    from etude.cost.collectives.times import AUTO as AUTO
    from etude.cost.collectives.times import choose as choose
    from etude.cost.collectives.times import collective_time_ns as collective_time_ns
    from etude.cost.collectives.times import collectives_time_ns as collectives_time_ns
    from etude.cost.collectives.times import start_ns as start_ns

__getattr__ = face(__name__)
