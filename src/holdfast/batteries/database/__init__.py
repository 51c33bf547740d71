"""Where batteries keep their tables: in the SQLite file or the PostgreSQL database that holds the checkpoints.

A battery has one small store contract, and one class for each database behind it. Those classes write their own SQL;
what they share is here: a connection off the event loop, transactions, the creation of tables, and errors of our tree.
"""
