"""What verbs ask for that query what was written: an archive of runs, a job, a served stream."""
