"""What verbs ask of databases of operators."""
