"""From real programs to jobs: collect records, link and ingest read, opening opens whatever is there."""
