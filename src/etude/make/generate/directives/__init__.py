"""Directives: rewrites of the graph of a step before it is split into ranks. A directive is a selector and a rewrite.

read.py      a YAML file, or a Python function, as a list of directives
step.py      Step: the graph of one pipeline rank's step, and the few ways to change it
copies.py    replicate, shard, gather: gradients, optimizer and weights over the copies of a model
nodes.py     order, overlap, place: any nodes
"""
