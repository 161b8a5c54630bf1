"""How Alembic runs the migrations: on the connection, and in the transaction, that `sql_schema` gives it."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
