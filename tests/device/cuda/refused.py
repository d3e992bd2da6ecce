"""A kernel that Triton's interpreter runs and its compiler refuses: a loop that turns an integer into a float.

As a script: says what is said of compiled kernels on the CPU, then compiles this one for an architecture.
"""

import sys

import torch
import triton
import triton.language as tl
from compile_ahead import compiled

from settled.reference.device.cuda.launches import BackEndError, check_back_end
from settled.reference.device.cuda.variants import Variant


@triton.jit
def halves_kernel(outputs, end, TILE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    total = 0
    for _ in range(end):
        total = total + 0.5
    tl.store(outputs + tl.arange(0, TILE), tl.zeros([TILE], tl.float32) + total)


HALVES = Variant(halves_kernel, {"TILE": 4})


def interpreted() -> list[float]:
    outputs = torch.zeros(4)
    HALVES.launch((1,), outputs, 3)
    return outputs.tolist()


if __name__ == "__main__":
    try:
        check_back_end(torch.device("cpu"))
    except BackEndError as error:
        print(error)
    compiled(HALVES, int(sys.argv[1]))
