"""What verbs ask for that several have in common: a job, a run, a plan, a simulation, edits."""
