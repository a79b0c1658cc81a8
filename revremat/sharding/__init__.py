"""Where arrays live: meshes and rules."""
