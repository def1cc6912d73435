"""Generate: from a model and a plan to an exact job.

Model      what is trained: its shape (model.py), from the catalogue, YAML or a Hugging Face config.json
Block      a piece of it as ops with their backward (ops.py, blocks.py, ...)
Plan       how it is spread over ranks (plan.py)
Schedule   in which order a pipeline rank does its work (schedules)
Program    the nodes of one pipeline rank as columns (program.py)
Generated  the folded job and its numbers (build.py)
"""
