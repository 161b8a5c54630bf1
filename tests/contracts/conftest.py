"""The backends that a store's contracts hold on."""

from pathlib import Path

import pytest

from tests.postgres import Postgres

SQL = ("sqlite", "postgresql")
BACKENDS = ("fake", *SQL)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Which backend a test of a contract runs on."""
    return request.param


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh, empty store of the backend; empty for the fake."""
    match backend:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'store.sqlite'}"
        case "postgresql":
            postgres: Postgres = request.getfixturevalue("postgres")
            return postgres.database()
        case _:
            return ""


@pytest.fixture(params=SQL)
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh, empty store, of each kind that outlives a process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite'}"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.database()
