"""Reports: asks the analyses about a run and says what they found, in words and in pictures."""
