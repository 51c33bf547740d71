"""The plan: workloads and their sizes, the systems that run them, and their raw limits."""

from dataclasses import dataclass, field

OURS = ("raw", "holdfast", "pydantic_ai")

_STORES = ("sqlite", "postgres")
_FORMS = ("sqlite", "sqlite-once", "postgres", "postgres-once")
_COMMITS = ("file", "sqlite-1", "sqlite-2", "postgres-1", "postgres-2")
_GROUPS = ("file", "sqlite-group-1", "sqlite-group-2", "postgres-group-1", "postgres-group-2")
_LANGGRAPH = ("sqlite", "sqlite-delta", "postgres", "postgres-delta")

_PEERS = {"langgraph": _LANGGRAPH, "dbos": ("sqlite", "postgres"), "restate": ("server",)}
#: Workers that lease their tasks: after a crash, the lease has to expire first, which W3 would measure.
_TASK_QUEUES = {"absurd": ("postgres",), "pgtask": ("postgres",)}


@dataclass(frozen=True)
class Workload:
    """One workload: what is measured, the unit of its size, and the systems that run it."""

    title: str
    axis: str
    #: The variants of each system, if the system's program supports the workload.
    systems: dict[str, tuple[str, ...]]
    #: Whether there is a raw limit to compare with.
    has_limit: bool = True


WORKLOADS = {
    "w1": Workload("W1: one long run", "steps", {"raw": _COMMITS, "holdfast": _FORMS, **_PEERS, **_TASK_QUEUES}),
    "w2": Workload("W2: many runs at once", "runs", {"raw": _GROUPS, "holdfast": _FORMS, **_PEERS, **_TASK_QUEUES}),
    "w3": Workload("W3: recovery", "runs", {"raw": ("file", "sqlite-1", "postgres-1"), "holdfast": _STORES, **_PEERS}),
    "w4": Workload("W4: three tool calls a step", "steps", {"raw": _COMMITS, "holdfast": _FORMS, **_PEERS}),
    "w5": Workload(
        "W5: a pydantic-ai agent",
        "steps",
        {"pydantic_ai": ("bare", "holdfast-sqlite"), "dbos": ("dbos-sqlite",), "step_persistence": ("sqlite",)},
    ),
    "w6": Workload("W6: runs whose tools wait", "runs", {"holdfast": _STORES, **_PEERS}, has_limit=False),
    "w7": Workload("W7: a fleet", "workers", {"holdfast": ("postgres",)}, has_limit=False),
    "w8": Workload("W8: a store with many waiting runs", "runs", {"holdfast": _STORES}, has_limit=False),
    "w9": Workload("W9: a store with many queued runs", "runs", {"holdfast": _STORES}, has_limit=False),
    "w10": Workload("W10: a store with many ended runs", "runs", {"holdfast": _STORES}, has_limit=False),
}

#: Larger sizes are not measured: the cost grows with the square of the history.
CAPS = {(workload, "langgraph", variant): 1000 for workload in ("w1", "w4") for variant in ("sqlite", "postgres")}


@dataclass(frozen=True)
class Size:
    """One workload in one size, and the number of repeats."""

    workload: str
    #: In the unit of the workload's axis.
    number: int
    repeats: int = 5
    #: The other sizes of the job.
    others: dict[str, int] = field(default_factory=dict)

    def numbers(self) -> dict[str, int]:
        """Return the sizes of the job, as its program gets them."""
        return {"bytes": 1000, **self.others, WORKLOADS[self.workload].axis: self.number}


_W2 = {"steps": 20}
_W3 = {"steps": 50}
_W7 = {"runs": 500, "steps": 20}

SHORT = (
    Size("w1", 100), Size("w1", 1000), Size("w1", 5000, 2),
    Size("w2", 1, 5, _W2), Size("w2", 128, 5, _W2), Size("w2", 1000, 3, _W2),
    Size("w3", 200, 3, _W3), Size("w3", 1000, 1, _W3),
    Size("w4", 300),
    Size("w5", 50),
    Size("w6", 1000, 1, {"seconds": 5}),
    Size("w7", 1, 3, _W7), Size("w7", 2, 3, _W7), Size("w7", 4, 3, _W7),
    Size("w8", 100_000, 1, {"seconds": 5}),
    Size("w9", 200_000, 1),
    Size("w10", 100_000, 1),
)  # fmt: skip

FULL = (
    Size("w1", 10), Size("w1", 100), Size("w1", 1000), Size("w1", 5000),
    Size("w2", 1, 5, _W2), Size("w2", 16, 5, _W2), Size("w2", 128, 5, _W2), Size("w2", 1000, 5, _W2),
    Size("w3", 1000, 5, _W3),
    Size("w4", 100), Size("w4", 1000),
    Size("w5", 10), Size("w5", 100), Size("w5", 300),
    Size("w6", 1000, 3, {"seconds": 10}), Size("w6", 10_000, 1, {"seconds": 10}),
    Size("w7", 1, 5, _W7), Size("w7", 2, 5, _W7), Size("w7", 4, 5, _W7),
    Size("w8", 1000, 3, {"seconds": 10}), Size("w8", 100_000, 3, {"seconds": 10}),
    Size("w9", 1000, 3), Size("w9", 200_000, 3),
    Size("w10", 1000, 3), Size("w10", 100_000, 3), Size("w10", 1_000_000, 1),
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
        for system, variants in WORKLOADS[workload].systems.items()
        if peers or system in OURS
        for variant in variants
    ]


def limit_of(workload: str, subject: Subject) -> Subject | None:
    """Return the raw limit of a subject: the same store, with the number of commits a step that it makes."""
    if subject.kind == "limit" or not WORKLOADS[workload].has_limit:
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
