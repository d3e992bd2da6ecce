"""Whether there is a CUDA device that the kernels can run on, and what is missing where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from importlib.util import find_spec


def why_absent() -> str:
    """In words; empty where a device is there. Sets what a process needs before it first uses CUDA, and then asks CUDA."""
    for name in ("numpy", "torch", "triton"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    unbuildable = _why_no_launchers()
    if unbuildable:
        return unbuildable
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


def _why_no_launchers() -> str:
    """Triton builds them in C when a kernel is first launched, with what CC names, gcc or clang, against Python's headers."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        return f"no C compiler, with which Triton builds launchers: looked for {', '.join(compilers)}"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton does: Debian's own has no headers
    command = [compiler, "-fsyntax-only", "-x", "c", f"-I{sysconfig.get_path('include', scheme)}", "-"]
    try:
        asked = subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True, check=False)
    except OSError as error:
        return f"no C compiler, with which Triton builds launchers: {error}"
    return f"no headers of Python, with which Triton builds launchers: {compiler} does not find Python.h" if asked.returncode else ""
