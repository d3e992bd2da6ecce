"""Every variant of every kernel compiles for devices that are not here, and the binaries are what launches would have."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from logs import Host
from refused import interpreted
from workloads import NUMBERS

from settled.model.specs import FullAttentionSpec, MambaSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda import kernels
from settled.reference.device.cuda.interpreted import interpreted_launches
from settled.reference.device.cuda.launches import Gate
from settled.reference.device.cuda.variants import Variant, variants_for
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import Slots

HERE = Path(__file__).parent
TYPES = {torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32"}


def script(name: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, whose kernels are compiled and not interpreted, and which finds nothing compiled before."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(cache)
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, str(HERE / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
def test_every_variant_compiles(architecture: int, tmp_path: Path) -> None:
    ran = script("compile_ahead.py", str(architecture), cache=tmp_path)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)["variants"]
    at = f" sm_{architecture}"
    assert {name.removesuffix(at) for name in told} > set(variants_for(16).__dataclass_fields__)
    for name, variant in told.items():
        assert variant["is_elf"], name
        assert variant["cubin"] > 1000, name
        assert variant["target"].startswith(at.strip()), name
        is_gated = "gated" in name
        assert (variant["looks"] >= 2) == is_gated, "a first look at the gate, and one in a loop"
        assert (variant["tells"] == 2) == is_gated, "the host is told of the arrival, and of a bound, while the kernel runs"
        assert (variant["waits"] > told["attention" + at]["waits"] == 0) == is_gated, name
    assert told["gated" + at]["back_edges"] > told["attention" + at]["back_edges"] >= 2, "ranges, tiles, and the gate's own loop"
    for name in ("attention, bfloat16", "copy, bfloat16"):
        assert told[name + at]["wide"] >= 4, "what bandwidth is measured with moves 16 bytes at a time"


@pytest.mark.slow
def test_what_the_interpreter_runs_and_the_compiler_refuses_is_refused_and_compiled_kernels_are_on_the_cpu(tmp_path: Path) -> None:
    assert interpreted() == [1.5] * 4
    ran = script("refused.py", "90", cache=tmp_path)
    assert ran.returncode == 1
    assert "total" in ran.stderr
    assert "CompilationError" in ran.stderr
    assert "set TRITON_INTERPRET=1" in ran.stdout


def _asked(variant: Variant) -> list[list[object]]:
    """What Triton's launcher knows of each argument: type, and alignment of pointers; of a constant its value."""
    known = []
    for name, kind in variant.signature().items():
        if kind == "constexpr":
            known.append([kind, variant.constants[name]])
        else:
            known.append([kind, ("D" if variant.is_aligned(name) else "") if kind.startswith("*") else None])
    return known


@pytest.mark.slow
def test_tritons_launcher_asks_for_one_binary_a_variant_whatever_a_launch_is_told(tmp_path: Path) -> None:
    """A second one would be compiled behind a closed gate, and wait for it."""
    ran = script("launch_nowhere.py", cache=tmp_path)
    assert ran.returncode == 0, ran.stderr
    binaries = json.loads(ran.stdout)
    launched = variants_for(NUMBERS.head_dim)
    variants = [getattr(launched, name) for name in launched.__dataclass_fields__]
    assert {name for name, _ in inspect.getmembers(kernels) if name.endswith("_kernel")} == set(binaries)
    for name, found in binaries.items():
        expected = [_asked(variant) for variant in variants if variant.kernel is getattr(kernels, name)]
        assert sorted(map(str, found)) == sorted(map(str, expected)), name


def _type(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        return TYPES[argument.dtype]
    if type(argument) is int:
        assert -(2**31) <= argument < 2**31
        return "i32"
    assert type(argument) is float
    return "fp32"


@pytest.mark.fake_device
def test_launches_use_the_variants_that_are_compiled_with_the_types_that_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[Variant, tuple[Any, ...]]] = []
    monkeypatch.setattr(Variant, "launch", lambda self, grid, *arguments: used.append((self, arguments)))
    host = Host((FullAttentionSpec(block_size=4), MambaSpec(block_size=4, mode="none")))
    request = host.add(5)
    host.step((request, 5))
    host.zero(20)
    host.poison(21)
    host.copy(20, 22)
    gated = host.step((request, 1))
    host.load(Slots(23, 1, (1, 2)))
    host.store_block(request, 0, 0)
    compiled = compile_log(host.log)
    launches = interpreted_launches(compiled, NumberedLog(compiled, NUMBERS))
    flag = torch.zeros(2, dtype=torch.int32)
    launches.gate = Gate(gated, 0, 1, flag[:1], flag[1:], spins=1)
    for op in host.log.launches():
        launches.run(op)
    expected = variants_for(NUMBERS.head_dim)
    assert {id(variant.kernel) for variant, _ in used} == {id(getattr(expected, name).kernel) for name in expected.__dataclass_fields__}
    for variant, arguments in used:
        assert variant in [getattr(expected, name) for name in expected.__dataclass_fields__]
        signature = {name: kind for name, kind in variant.signature().items() if kind != "constexpr"}
        assert [_type(argument) for argument in arguments] == list(signature.values()), variant.kernel
        for name, argument in zip(signature, arguments, strict=True):
            assert not variant.is_aligned(name) or argument.storage_offset() == 0, name
