"""One browser for all tests of pages, and what no page may do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from browser import chromium, messages, missing


@pytest.fixture(scope="package")
def driver() -> Iterator[Any]:
    """Where it is missing tests are skipped, but not where it must be there."""
    if missing():
        if os.environ.get("SETTLED_REQUIRES_BROWSER"):
            pytest.fail(missing())
        pytest.skip(missing())
    with chromium() as browser:
        yield browser


@pytest.fixture
def nothing_is_logged(driver: Any) -> Iterator[None]:
    """No error, no warning, nothing that the page's policy refused."""
    messages(driver)
    yield
    assert messages(driver) == []
