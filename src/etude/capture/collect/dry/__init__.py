"""Runs one rank of a program without its machine: tensors have shapes and no numbers, collectives are answered at once.

`python -m etude.capture.collect.dry.worker` is started by the launcher, once for each rank that is asked for.
"""
