"""The release after this one: the same code, and one more migration of each database."""

import shutil
from pathlib import Path

import holdfast
from holdfast.stores.sqlite.database import load_migrations

#: The newest schema of this release, and that of the next.
VERSION = len(load_migrations())
NEXT_VERSION = VERSION + 1

_MIGRATIONS = {
    "sqlite": (
        "ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'; CREATE INDEX runs_by_mood ON runs (mood);"
    ),
    "postgres": (
        "alter table holdfast.run add column mood text not null default 'calm';"
        " create index run_mood on holdfast.run (mood);"
    ),
}


def make_next_release(folder: Path) -> Path:
    """Return a folder, to be put on the path of a process instead of this holdfast."""
    release = folder / "next-release"
    package = release / "holdfast"
    shutil.copytree(Path(holdfast.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, script in _MIGRATIONS.items():
        (package / "stores" / name / "sql" / "migrations" / f"{NEXT_VERSION:04}_mood.sql").write_text(script)
    return release
