"""Exact search on blocks of any shape."""
