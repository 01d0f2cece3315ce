"""Alembic's entry. Run it by `pgqueue migrate`, which takes the lock and sets the time-outs.

Revisions change tables and data only. After them functions, views and roles are replayed from sql/, in the same
transaction: a revision that loaded a function would break when history is replayed, since bodies are checked
against the tables of today.
"""

from alembic import context

from pgqueue.schema import VERSION_TABLE, replay_functions

context.configure(
    connection=context.config.attributes.get("connection"),
    dialect_name="postgresql",
    version_table=VERSION_TABLE,
    version_table_schema="pgqueue",
)
with context.begin_transaction():
    context.run_migrations()
    replay_functions()
