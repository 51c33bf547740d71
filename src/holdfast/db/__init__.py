"""Database connections below the stores and the batteries. Knows no runs.

A battery keeps its tables in the SQLite file or PostgreSQL database that holds the checkpoints. Batteries write little,
so each has one store over `Tables`, in SQL that both databases accept: `?` for parameters, `ON CONFLICT` for upserts,
text for JSON, seconds since the epoch for times.
"""
