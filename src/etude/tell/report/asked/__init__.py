"""What verbs ask for that write pages, or compare: runs, served streams, fleets."""
