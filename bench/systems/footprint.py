"""Disk space and writes of a job, in its folder or in its PostgreSQL database."""

from dataclasses import dataclass

from bench.systems.protocol import POSTGRES_SIZE, POSTGRES_WAL, Job, disk_bytes, written_bytes


@dataclass(frozen=True)
class Footprint:
    """Readings of one moment. The difference of two is the cost of what happened between them."""

    disk_bytes: int
    written_bytes: int

    def since(self, earlier: "Footprint") -> dict[str, int]:
        return {
            "disk_bytes": self.disk_bytes - earlier.disk_bytes,
            "written_bytes": self.written_bytes - earlier.written_bytes,
        }


def footprint(job: Job) -> Footprint:
    """Read both now."""
    if not uses_postgres(job):
        return Footprint(disk_bytes(job["folder"]), written_bytes())
    import psycopg  # slow to import, and some jobs are measured from the start of their process

    with psycopg.connect(job["postgres"] or "", autocommit=True) as connection:
        size, log = (connection.execute(query).fetchone() for query in (POSTGRES_SIZE, POSTGRES_WAL))
    assert size is not None
    assert log is not None
    return Footprint(size[0], log[0])


def uses_postgres(job: Job) -> bool:
    return job["variant"].startswith("postgres")
