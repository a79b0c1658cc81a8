"""Where in memory: safe reuse and optimal offsets for buffers with known lifetimes."""
