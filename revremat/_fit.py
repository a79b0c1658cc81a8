"""search and fit: the loop over the stages."""
