"""In pytest's own process kernels are interpreted, which is chosen before anything imports triton. Phases on a device are processes."""

import os

os.environ["TRITON_INTERPRET"] = "1"
