"""The spin kernels: what they do, interpreted, and that the compiler takes them for the devices that are meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from looks import opened_at_look

from settled.reference.device.cuda.spin import SpinKernels

pytestmark = pytest.mark.fake_device

COMPILE = """
import json
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime import driver
from settled.reference.device.cuda.spin_kernels import post_kernel, wait_kernel

POST = {"words": "*i32", "index": "i32", "value": "i32"}
made = {}
for number in (80, 90):
    for kernel, signature in ((wait_kernel, {**POST, "bounds": "*i32", "looks": "i32"}), (post_kernel, POST)):
        source = ASTSource(fn=kernel, signature=signature, constexprs={})
        compiled = compile(source, target=GPUTarget("cuda", number, 32), options={"num_warps": 1})
        made[f"{kernel.__name__} {number}"] = (len(compiled.asm["cubin"]), compiled.asm["ptx"])


class Nowhere:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


driver.set_active(Nowhere())
words = torch.zeros(64, dtype=torch.int32)
for number in (0, 1, 2, 16, 262_144):
    for value in (1, 3, 16):
        post_kernel.warmup(words, number, value, grid=(1,), num_warps=1)
        for looks in (1, 16, 2**31 - 1):
            wait_kernel.warmup(words, number, value, words, looks, grid=(1,), num_warps=1)
print(json.dumps([made, [len(kernel.device_caches[0][0]) for kernel in (wait_kernel, post_kernel)]]))
"""


def words(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_a_gate_that_is_open_lets_pass_at_the_first_look() -> None:
    bounds = words(0, 0)
    SpinKernels().wait(words(0, 5), 1, 5, bounds, 0)
    SpinKernels().wait(words(0, 6), 1, 5, bounds, 0)
    SpinKernels().wait(words(0, -(2**31)), 1, 2**31 - 1, bounds, 0)  # differences are cyclic
    assert bounds.tolist() == [0, 0]


def test_a_gate_that_stays_closed_is_told_at_the_bound() -> None:
    for word in (4, -1):
        bounds = words(0, 0)
        SpinKernels().wait(words(7, word), 1, 5, bounds, 20)
        assert bounds.tolist() == [0, 5]


def test_a_gate_is_looked_at_once_and_then_as_often_as_is_said() -> None:
    for opens_at, told in ((1, 0), (4, 0), (5, 1)):
        gate, bounds = words(0, 0), words(0, 0)
        with opened_at_look(gate[1:], opens_at) as looks:
            SpinKernels().wait(gate, 1, 1, bounds, 3)
        assert (len(looks), bounds.tolist()) == (min(opens_at, 4), [0, told])


def test_a_gate_that_opens_in_time_lets_pass() -> None:
    gate, bounds = words(0, 0), words(0, 0)
    threading.Timer(0.05, lambda: gate.__setitem__(1, 1)).start()
    SpinKernels().wait(gate, 1, 1, bounds, 1_000_000)
    assert bounds.tolist() == [0, 0]
    assert gate.tolist() == [0, 1]


def test_a_post_writes_one_word() -> None:
    written = words(1, 2, 3)
    SpinKernels().post(written, 1, 9)
    assert written.tolist() == [1, 9, 3]


def test_the_compiler_takes_them_once_and_reads_the_word_anew_each_time() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made, binaries = json.loads(done.stdout)
    assert binaries == [1, 1], "of a second one the first launch would compile, behind a gate"
    assert sorted(made) == ["post_kernel 80", "post_kernel 90", "wait_kernel 80", "wait_kernel 90"]
    for name, (size, ptx) in made.items():
        assert size > 1000
        if name.startswith("wait"):
            body, loop = ptx.split("$L__BB0_1:")
            assert "ld.volatile.global.b32" in body
            assert "ld.volatile.global.b32" in loop.split("bra")[0]
        assert "st.global.wt.b32" in ptx
