"""What a run means, for people: views, reports, an archive of many runs."""
