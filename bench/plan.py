"""The plan: workloads and their sizes, the systems that run them, and their raw limits."""

from dataclasses import dataclass, field

#: By workload: the unit of its size.
AXES = {"w1": "steps", "w2": "runs", "w3": "runs", "w4": "steps", "w5": "steps", "w6": "runs", "w7": "workers"}

TITLES = {
    "w1": "W1: one long run",
    "w2": "W2: many runs at once",
    "w3": "W3: recovery",
    "w4": "W4: three tool calls a step",
    "w5": "W5: a pydantic-ai agent",
    "w6": "W6: runs that wait",
    "w7": "W7: a fleet",
}

OURS = ("raw", "holdfast", "pydantic_ai")

_STORES = ("sqlite", "postgres")
_FORMS = ("sqlite", "sqlite-once", "postgres", "postgres-once")
_COMMITS = ("file", "sqlite-1", "sqlite-2", "postgres-1", "postgres-2")
_GROUPS = ("file", "sqlite-group-1", "sqlite-group-2", "postgres-group-1", "postgres-group-2")
_LANGGRAPH = ("sqlite", "sqlite-delta", "postgres", "postgres-delta")

_PEERS = {"langgraph": _LANGGRAPH, "dbos": ("sqlite", "postgres"), "restate": ("server",)}

#: By workload: the variants of each system that run it, if the system's program supports it.
SYSTEMS: dict[str, dict[str, tuple[str, ...]]] = {
    "w1": {"raw": _COMMITS, "holdfast": _FORMS, **_PEERS},
    "w2": {"raw": _GROUPS, "holdfast": _FORMS, **_PEERS},
    "w3": {"raw": ("file", "sqlite-1", "postgres-1"), "holdfast": _STORES, **_PEERS},
    "w4": {"raw": _COMMITS, "holdfast": _FORMS, **_PEERS},
    "w5": {"pydantic_ai": ("bare", "holdfast-sqlite"), "dbos": ("dbos-sqlite",)},
    "w6": {"holdfast": _STORES, **_PEERS},
    "w7": {"holdfast": ("postgres",)},
}

#: Larger sizes are not measured: the cost grows with the square of the history.
CAPS = {(workload, "langgraph", variant): 1000 for workload in ("w1", "w4") for variant in ("sqlite", "postgres")}


@dataclass(frozen=True)
class Size:
    """One workload in one size, and the number of repeats."""

    workload: str
    #: In the unit of `AXES`.
    number: int
    repeats: int = 5
    #: The other sizes of the job.
    others: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> dict[str, int]:
        """Return the sizes of the job, as its program gets them."""
        return {"bytes": 1000, **self.others, AXES[self.workload]: self.number}


_W2 = {"steps": 20}
_W3 = {"steps": 50}
_W7 = {"runs": 500, "steps": 20}

SHORT = (
    Size("w1", 100), Size("w1", 1000), Size("w1", 5000, 2),
    Size("w2", 1, 5, _W2), Size("w2", 128, 5, _W2), Size("w2", 1000, 3, _W2),
    Size("w3", 200, 3, _W3),
    Size("w4", 300),
    Size("w5", 50),
    Size("w6", 1000, 1, {"seconds": 5}),
    Size("w7", 1, 3, _W7), Size("w7", 2, 3, _W7), Size("w7", 4, 3, _W7),
)  # fmt: skip

FULL = (
    Size("w1", 10), Size("w1", 100), Size("w1", 1000), Size("w1", 5000),
    Size("w2", 1, 5, _W2), Size("w2", 16, 5, _W2), Size("w2", 128, 5, _W2), Size("w2", 1000, 5, _W2),
    Size("w3", 1000, 5, _W3),
    Size("w4", 100), Size("w4", 1000),
    Size("w5", 10), Size("w5", 100), Size("w5", 300),
    Size("w6", 1000, 3, {"seconds": 10}),
    Size("w7", 1, 5, _W7), Size("w7", 2, 5, _W7), Size("w7", 4, 5, _W7),
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Subject:
    """A system in one of its variants."""

    system: str
    variant: str

    def __str__(self) -> str:
        return f"{self.system.replace('_', '-')} {self.variant}"

    @property
    def kind(self) -> str:
        """Return `limit`, `ours` or `peer`."""
        if self.system == "raw" or self.variant == "bare":
            return "limit"
        return "ours" if self.system in OURS else "peer"


def subjects(workload: str, *, peers: bool) -> list[Subject]:
    """Return the systems and variants that run a workload."""
    return [
        Subject(system, variant)
        for system, variants in SYSTEMS[workload].items()
        if peers or system in OURS
        for variant in variants
    ]


def limit_of(workload: str, subject: Subject) -> Subject | None:
    """Return the raw limit of a subject: the same store, with the number of commits a step that it makes."""
    if subject.kind == "limit" or workload in ("w6", "w7"):
        return None
    if workload == "w5":
        return Subject("pydantic_ai", "bare")
    store = next((store for store in ("sqlite", "postgres") if subject.variant.startswith(store)), "file")
    # Peers commit a reply before they call the tools. Restate is compared with a file.
    commits = 2 if subject.variant.endswith("-once") or subject.kind == "peer" else 1
    if store == "file":
        return Subject("raw", "file")
    if workload == "w3":
        return Subject("raw", f"{store}-1")
    return Subject("raw", f"{store}-group-{commits}" if workload == "w2" else f"{store}-{commits}")


def capped(size: Size, subject: Subject) -> bool:
    """Return whether the size is above the cap of this subject."""
    return size.number > CAPS.get((size.workload, subject.system, subject.variant), size.number)
