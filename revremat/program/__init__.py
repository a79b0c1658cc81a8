"""The user's program as data: blocks, names, rewriting, and the stack engine."""
