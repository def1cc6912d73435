"""Views of a run. Input: tables and columns; output: files for people. A shelf: each file shows others what is in its
`__all__`."""
