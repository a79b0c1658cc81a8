"""Where a program has something to decide: layers found again, units of them."""
