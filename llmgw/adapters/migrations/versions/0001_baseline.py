"""The schema of the first version, which made it without Alembic: so whatever is there already stays as it is."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make what is missing."""
    _make("lease", _id(), _text("owner", 64), _number("epoch", sa.BigInteger), _number("expires"))
    _make(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        _number("at"),
        _text("kind", 64),
        _text("subject"),
        _text("text"),
        _text("cause"),
    )
    _make("trees", _id(), _text("revision"), _text("content"))
    _make("nodes", sa.Column("name", sa.String(64), primary_key=True), _text("spec"))
    _make(
        "acts",
        sa.Column("target", sa.String(300), primary_key=True),
        _text("kind", 16),
        _text("reason"),
        _number("at"),
        _number("until", null=True),
        _text("by"),
    )
    _make("standing", _id(), _number("serial", sa.BigInteger), _text("content"))
    _make(
        "revisions",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        _text("revision"),
        _text("digest", 64),
        _text("subject"),
        _text("author"),
        _number("at"),
        _text("by"),
        _text("how", 16),
        _text("outcome", 16),
        _text("note"),
        _number("ended", null=True),
        _number("applied", null=True),
        _number("committed", null=True),
    )
    for name in ("revision_trees", "blobs"):
        _make(
            name,
            sa.Column("digest", sa.String(64), primary_key=True),
            sa.Column("content", sa.LargeBinary, nullable=False),
        )
    _make("used_plans", sa.Column("id", sa.String(64), primary_key=True), _number("at"), _number("expires"))


def _make(name: str, *columns: sa.Column) -> None:  # type: ignore[type-arg]
    op.create_table(name, *columns, if_not_exists=True)


def _id() -> sa.Column:  # type: ignore[type-arg]
    return sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)


def _text(name: str, length: int | None = None) -> sa.Column:  # type: ignore[type-arg]
    return sa.Column(name, sa.String(length) if length else sa.Text, nullable=False)


def _number(name: str, kind: type[sa.types.TypeEngine] = sa.Double, *, null: bool = False) -> sa.Column:  # type: ignore[type-arg]
    return sa.Column(name, kind, nullable=null)
