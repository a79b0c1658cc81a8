"""How a block can be inverted."""
