"""A program as data: operations, what they cost, what identifies them."""
