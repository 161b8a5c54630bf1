"""What tests of several kinds share: a PostgreSQL for the whole run, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from tests.postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL. A test that stops it starts it again, or makes its own."""
    server = Postgres()
    server.start()
    try:
        yield server
    finally:
        server.close()
