"""Exit codes of every command; 0 is success."""

FAILED = 1
"""A check failed, or the user's program raised."""

MISTAKE = 2
"""What was written cannot be done; one sentence says why."""
