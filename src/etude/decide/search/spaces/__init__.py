"""Kinds of search: one space in one file, whose name is the kind: `search: plans` is `plans.py`.

space(given, asked)       the space that a file describes, for the solver
options(keys, method)     which of `workers`, `ray`, `seed` and `again` it reads; without it none
"""
