"""The nouns: Trace, Job, Timing, System, and what several verbs need from them."""
