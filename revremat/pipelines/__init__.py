"""Stages over time."""
