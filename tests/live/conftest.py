"""Live tests run real processes. Locally one whose program is missing is skipped with the install command; in CI never."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.live.lab import Lab

INSTALL = {
    "git": "apt-get install git",
    "sshd": "apt-get install openssh-server",
    "gpg": "apt-get install gnupg",
    "curl": "apt-get install curl",
    "jq": "apt-get install jq",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/live" in item.nodeid:
            item.add_marker(pytest.mark.live)


def program(name: str) -> str:
    """Return the path of a program that a live test needs, or skip the test; fail where skipping is not allowed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        reason = f"{name} is not installed; {INSTALL.get(name, 'install it')}"
        if os.environ.get("LLMGW_NO_SKIP"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture
def lab() -> Iterator[Lab]:
    program("git")
    lab = Lab()
    try:
        yield lab
    finally:
        lab.close()
