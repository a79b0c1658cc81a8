"""From a step to what the compiler made of it, with a cache on disk."""
