"""Views: what a run looks like. Tables and columns in, files for people's eyes out."""
