"""Views: what a job and its timing look like. Tables and columns in, files for people's eyes out."""
