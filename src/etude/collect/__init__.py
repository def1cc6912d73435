"""Records what a training script does: execution trace, profiler trace, manifest, for every rank.

from etude.collect import torch as collect
with collect.trace("run/", steps=3):
    train()

Nothing here imports PyTorch before a recording is asked for.
"""
