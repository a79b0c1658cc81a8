"""Which bytes live when, and whose they are."""
