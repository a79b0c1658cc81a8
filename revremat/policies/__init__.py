"""What to propose for a residual, and how to decide."""
