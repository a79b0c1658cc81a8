"""Eight CPU devices, no accelerator, strict promotion: the same everywhere."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
