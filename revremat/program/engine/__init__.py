"""Layers run as actions say: one layer, a stack of them, a block in chunks."""
