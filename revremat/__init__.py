"""revremat: reversible networks and rematerialization for JAX."""
