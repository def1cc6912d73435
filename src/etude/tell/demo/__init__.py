"""The tour of `etude demo`: its commands, one after the other, on an embedded recording."""
