"""Views: what a run looks like. Tables and columns in, files for people's eyes out. A shelf: each file shows others
what is in its `__all__`."""
