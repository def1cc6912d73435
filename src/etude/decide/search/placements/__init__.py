"""Placements of a job's ranks on the devices of a system.

best        the space that is solved, and the fastest placement
bound       a time that no simulation of a placement can beat
orders      orders worth trying first
symmetry    placements that take the same time
"""
