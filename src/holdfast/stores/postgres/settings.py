"""Settings of the server that hurt, for `doctor`."""

from collections.abc import Sequence

#: Connections of one process: the writer, readers, the heartbeat and LISTEN.
_CONNECTIONS_PER_PROCESS = 6
#: A shorter timeout ends calls on a busy server.
_MIN_TIMEOUT_MS = 10_000

#: Values are in the units of `pg_settings`: milliseconds for timeouts.
SETTINGS_QUERY = """
select name, setting from pg_catalog.pg_settings where name in (
    'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'default_transaction_read_only',
    'statement_timeout', 'lock_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout'
)
union all
select 'free_connections', (
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
    - (select coalesce(sum(numbackends), 0) from pg_catalog.pg_stat_database)
)::text
"""

_SWITCHES = {
    "fsync": ("off", "a crash of the server's host may damage or lose every run: set it to on"),
    "full_page_writes": (
        "off",
        "a power cut may damage every run: set it to on",
    ),
    "synchronous_commit": (
        "off",
        "a crash of the server loses acknowledged saves: set it to on for this user",
    ),
    "autovacuum": ("off", "space is not given back and plans grow stale: set it to on"),
    "default_transaction_read_only": ("on", "nothing can be saved: set it to off for this user or database"),
}

_TIMEOUTS = {
    "statement_timeout": "it ends saves on a busy server",
    "lock_timeout": "it ends saves on a busy server",
    "idle_session_timeout": "it cuts idle connections, among them the one that listens for changes",
    "idle_in_transaction_session_timeout": "it ends transactions of batteries on a busy host",
}


def describe_bad_settings(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return what to change, given the rows of `SETTINGS_QUERY`."""
    settings = dict(rows)
    found = [f"{name} is {bad}: {advice}" for name, (bad, advice) in _SWITCHES.items() if settings.get(name) == bad]
    for name, reason in _TIMEOUTS.items():
        milliseconds = int(settings.get(name, 0))
        if 0 < milliseconds < _MIN_TIMEOUT_MS:
            found.append(f"{name} is {milliseconds} ms: {reason}: use at least {_MIN_TIMEOUT_MS} ms, or 0")
    free = int(settings["free_connections"])
    if free < _CONNECTIONS_PER_PROCESS:
        found.append(
            f"{max(free, 0)} connections are free and a process uses up to {_CONNECTIONS_PER_PROCESS}:"
            " raise max_connections, or use a pooler"
        )
    return found
