"""A scheduled HLO program, indexed: instructions, loops, kernels, origins."""
