"""Whether there is a CUDA device that the kernels can run on, and what is missing where there is none."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec


def why_absent() -> str:
    """In words; empty where a device is there. Sets what a process needs before it first uses CUDA, and then asks CUDA."""
    for name in ("numpy", "torch", "triton"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        return f"no C compiler, with which Triton builds launchers: looked for {', '.join(compilers)}"
    from settled.reference.device.cuda.driver import load_libcuda

    try:
        load_libcuda()
    except RuntimeError as error:
        return str(error)
    import torch

    from settled.reference.device.cuda.runtime import CudaError, set_environment

    try:
        set_environment(os.environ)
    except CudaError as error:
        return str(error)
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"
