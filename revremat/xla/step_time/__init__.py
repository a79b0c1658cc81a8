"""How long a scheduled program takes: work, bytes, collectives, summed up."""
