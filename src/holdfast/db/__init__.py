"""Where batteries keep their tables: in the SQLite file or the PostgreSQL database that holds the checkpoints.

Batteries write little and read plainly, so each has one store over `Tables`, in SQL that both databases speak: `?` for
parameters, `ON CONFLICT` for upserts, text for JSON, seconds since the epoch for times. Checkpoint stores, where speed
is decided, have their own code for each database.
"""
