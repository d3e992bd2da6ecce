"""What does not go together is refused before anything runs, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from logs import Host
from workloads import FAULT_1, FAULT_2, made

from settled.model.specs import MambaSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda import absence, kernels
from settled.reference.device.cuda.contiguous import contiguous_log
from settled.reference.device.cuda.device_log import _expected_at
from settled.reference.device.cuda.interpreted import interpreted_launches, replay_interpreted
from settled.reference.device.cuda.launches import BackEndError, check_back_end
from settled.reference.device.cuda.variants import variants_for
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind
from settled.reference.device.payload import Numbers

pytestmark = pytest.mark.fake_device


def test_kernels_that_are_compiled_do_not_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "IS_INTERPRETED", False)
    with pytest.raises(BackEndError, match="set TRITON_INTERPRET=1"):
        check_back_end(torch.device("cpu"))
    check_back_end(torch.device("cuda"))
    monkeypatch.undo()
    with pytest.raises(BackEndError, match="unset it"):
        check_back_end(torch.device("cuda"))
    with pytest.raises(BackEndError, match="not on meta"):
        check_back_end(torch.device("meta"))


def test_an_interpreter_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "TRITON_VERSION", (3, 6))
    with pytest.raises(BackEndError, match="upgrade triton"):
        check_back_end(torch.device("cpu"))


def test_numbers_in_float64_are_not_the_kernels() -> None:
    compiled = made(FAULT_1).compiled
    with pytest.raises(ValueError, match="is_single=True"):
        interpreted_launches(compiled, NumberedLog(compiled, Numbers(head_dim=16)))


def test_a_position_that_a_step_does_not_read_has_no_tag_to_expect() -> None:
    step = made(FAULT_1).compiled.steps[0]
    with pytest.raises(AssertionError, match="position 9999 of part 0 is in no span"):
        _expected_at(step, 0, 9999)


def test_a_package_a_compiler_or_headers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as without:
        without.setenv("CC", "no-such-compiler")
        assert "looked for no-such-compiler" in absence.why_absent()
        (tmp_path / "cc").touch(0o755)
        without.setenv("CC", str(tmp_path / "cc"))
        assert absence.why_absent().startswith("no C compiler, with which Triton builds launchers: [Errno 8] Exec format error")
        without.delenv("CC")
        without.setattr(absence.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
        without.delenv("CPATH", raising=False)
        said = absence.why_absent()
        assert said.startswith("no headers of Python, with which Triton builds launchers:")
        assert said.endswith("does not find Python.h")
        (tmp_path / "Python.h").touch()
        assert "Python.h" not in absence.why_absent()
    monkeypatch.setattr(absence, "find_spec", lambda name: None if name == "triton" else object())
    assert absence.why_absent() == "triton is not installed"


def test_kernels_need_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        variants_for(12)


def test_a_launch_of_nothing_writes_nothing() -> None:
    ready = made(FAULT_2)
    launches = interpreted_launches(ready.compiled, ready.numbered)
    before = launches.buffers.tags.clone()
    op = ready.compiled.kinds.index(LaunchKind.WRITE)
    launches._log.writes[op] = launches._log.blocks[op] = range(0)
    launches.run(op)
    launches._zero(op)
    assert torch.equal(launches.buffers.tags, before)
    assert not replay_interpreted(launches, [op]).is_clean, "no row has been read"


def test_a_step_of_states_alone_writes_no_keys_into_contiguous_memory() -> None:
    host = Host((MambaSpec(block_size=4, mode="none"),))
    request = host.add(5)
    host.step((request, 5))
    host.step((request, 1))
    kinds = [launch.kind for launch in contiguous_log(compile_log(host.log)).ops]
    assert kinds.count(LaunchKind.STEP) == 2
    assert LaunchKind.WRITE not in kinds
    compiled = compile_log(host.log)
    numbered = NumberedLog(compiled, Numbers(head_dim=16, is_single=True))
    assert replay_interpreted(interpreted_launches(compiled, numbered)).is_clean
