"""What a live recording is asked for, by environment variables."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from settled.proofs.vllm_plugin import register
from settled.reference.engines.vllm.live_settings import LiveSettings, settings_from


def test_a_name_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken where the server started: a process that changes its folder writes there all the same."""
    monkeypatch.chdir(tmp_path)
    assert settings_from("trace.ndjson", {}) == LiveSettings(path=tmp_path / "trace.ndjson")


def test_each_limit_can_be_set() -> None:
    environment = {"SETTLED_TRACE_FILE_BYTES": "1000", "SETTLED_TRACE_FILES": "2", "SETTLED_TRACE_BUFFER_RECORDS": "30"}
    expected = LiveSettings(path=Path("/t/trace"), file_bytes=1000, files_max=2, buffer_records=30)
    assert settings_from("/t/trace", environment) == expected


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e6", "", "many"])
def test_a_wrong_limit_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=r"SETTLED_TRACE_FILES=.*: expected a whole number from 1"):
        settings_from("trace", {"SETTLED_TRACE_FILES": value})


@pytest.mark.parametrize("trace", ["/", ".", ""])
def test_a_trace_needs_a_name(trace: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        settings_from(trace, {})


def test_a_wrong_setting_does_not_stop_vllm(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("SETTLED_TRACE", "/")
    with caplog.at_level(logging.ERROR, "vllm.settled"):
        register()
    (record,) = caplog.records
    assert "'/' names no file" in (record.exc_text or "")
