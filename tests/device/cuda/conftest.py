"""Kernels run in Triton's interpreter here, which is chosen before anything imports triton. Processes that compile drop the variable."""

import os

os.environ["TRITON_INTERPRET"] = "1"
