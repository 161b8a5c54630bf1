"""Who may ask (keys), what it cost (usage), and who did what (the audit trail).

`usage_sources` are the gateways' processes: of each the number of the last batch that was added, so that none is added twice.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make their tables."""
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=True),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("expires", sa.Double, nullable=True),
        sa.Column("revoked", sa.Double, nullable=True),
        sa.Column("last_used", sa.Double, nullable=True),
    )
    op.create_table(
        "keys_version",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(32), primary_key=True),
        sa.Column("model", sa.String(200), primary_key=True),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("requests", "failed", "prompt", "completion", "cached", "estimated")
        ),
    )
    op.create_table(
        "usage_sources",
        sa.Column("source", sa.String(64), primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Double, nullable=False, index=True),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("said", sa.Text, nullable=False),
        sa.Column("act", sa.String(64), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
    )
