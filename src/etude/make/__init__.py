"""Jobs without a run: generated from a model and a plan, learned from others, changed by edits."""
