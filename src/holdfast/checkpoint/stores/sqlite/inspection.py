"""How the database file stands: its version, its size, and whether SQLite finds it sound."""

from pathlib import Path

import apsw

from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.stores.sqlite.statements import migrations
from holdfast.checkpoint.stores.sqlite.transaction import Execute

#: A damaged file may have any number of complaints; a few say enough.
_COMPLAINTS = 5


def inspect(execute: Execute, path: Path) -> Inspection:
    """Read the whole file once."""
    version, page_size, free_pages = (
        execute(f"PRAGMA {name}").get for name in ("user_version", "page_size", "freelist_count")
    )
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    return Inspection(
        version=version,
        known_version=len(migrations()),
        size=sum(file.stat().st_size for file in files if file.exists()),
        free=page_size * free_pages,
        problems=_problems(execute),
    )


def _problems(execute: Execute) -> list[str]:
    try:
        complaints = execute(f"PRAGMA quick_check({_COMPLAINTS})").fetchall()
    except apsw.CorruptError as exc:
        return [f"the file cannot be read through: {exc}"]
    return [text for (complaint,) in complaints if complaint != "ok" for text in str(complaint).splitlines()]
