"""Values at run time: buffers of many layers, host memory, what types entail."""
