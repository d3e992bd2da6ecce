"""What does not go together is refused before anything runs, and what is missing is named."""

from __future__ import annotations

import pytest
import torch
from workloads import FAULT_1, made

from settled.reference.device.cuda import absence, kernels
from settled.reference.device.cuda.device_log import _expected_at
from settled.reference.device.cuda.interpreted import interpreted_launches
from settled.reference.device.cuda.launches import BackEndError, check_back_end
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.payload import Numbers


def test_kernels_that_are_compiled_do_not_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "IS_INTERPRETED", False)
    with pytest.raises(BackEndError, match="set TRITON_INTERPRET=1"):
        check_back_end(torch.device("cpu"))
    check_back_end(torch.device("cuda"))


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


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "find_spec", lambda name: None if name == "triton" else object())
    assert absence.why_absent() == "triton is not installed"
