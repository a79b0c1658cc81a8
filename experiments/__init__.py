"""Training on real data, and the programs the reports are about."""
