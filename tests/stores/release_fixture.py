"""Packs the code of a release, so that later ones can run beside it: `python -m tests.stores.release_fixture`.

Run once for each new version of the PostgreSQL schema, before the next one is written; the files are kept for good.
"""

import zipfile
from pathlib import Path

import holdfast
from holdfast.stores.postgres.database import SqlFiles

FOLDER = Path(__file__).parent / "fixtures"
#: A worker on PostgreSQL needs none of these.
_LEFT_OUT = {"adapters", "batteries", "cli", "client", "compare", "fanout", "testing", "web"}


def get_release(version: int) -> Path:
    """Return the code of the release with this version of the schema, to be put on the path of a process."""
    return FOLDER / f"release-v{version}.zip"


def pack(source: Path, version: int) -> None:
    """Pack the package `source`. Equal files make equal bytes."""
    with zipfile.ZipFile(get_release(version), "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(source.rglob("*")):
            path = file.relative_to(source)
            if file.suffix in (".py", ".sql") and path.parts[0] not in _LEFT_OUT:
                entry = zipfile.ZipInfo(f"holdfast/{path}")
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    pack(Path(holdfast.__file__).parent, len(SqlFiles("holdfast").migrations))
