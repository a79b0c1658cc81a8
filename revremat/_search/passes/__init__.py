"""Passes: the steps of a search, each from what is known to more of it."""
