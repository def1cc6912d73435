"""What users touch: the command line, Python, assistants (MCP)."""
