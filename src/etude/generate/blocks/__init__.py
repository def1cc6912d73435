"""Blocks: layers, embeddings and heads as lists of ops with their backward."""
