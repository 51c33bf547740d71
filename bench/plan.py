"""The plan: one table of workloads, the systems that run them, and their sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bench import measures as m

#: Systems that run in this project's own environment. `make bench` measures only these.
OWN = ("raw", "holdfast", "pydantic_ai")


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
        if self.system == "raw" or self.variant in ("bare", "memory"):
            return "limit"
        return "ours" if "holdfast" in str(self) else "peer"


@dataclass(frozen=True)
class Size:
    """One size of a workload, in the unit of its axis, and the number of repeats."""

    number: int
    repeats: int = 3
    #: Further numbers of the job.
    numbers: Mapping[str, int] = field(default_factory=dict)
    #: Numbers that differ for peers. `None`: peers are not measured in this size.
    peers: Mapping[str, int] | None = field(default_factory=dict)
    #: Whether `make bench` measures this size.
    short: bool = True


@dataclass(frozen=True)
class Workload:
    """What is measured, on which systems, in which sizes."""

    title: str
    #: The unit of a size.
    axis: str
    #: The variants of each system.
    systems: Mapping[str, tuple[str, ...]]
    sizes: tuple[Size, ...]
    measures: tuple[m.Measure, ...]
    #: The subject that others are compared with; `{store}` and `{commits}` are those of the compared one.
    limit: str = ""
    #: The largest size of a subject, if its cost is quadratic.
    caps: Mapping[str, int] = field(default_factory=dict)

    def subjects(self, *, peers: bool) -> list[Subject]:
        systems = {system: variants for system, variants in self.systems.items() if peers or system in OWN}
        return [Subject(system, variant) for system, variants in systems.items() for variant in variants]


_STORES = ("sqlite", "postgres")
_FORMS = ("sqlite", "sqlite-once", "postgres", "postgres-once")
_COMMITS = ("file", "sqlite-1", "sqlite-2", "postgres-1", "postgres-2")
_GROUPS = ("file", "sqlite-group-1", "sqlite-group-2", "postgres-group-1", "postgres-group-2")
_DELTA = ("sqlite-delta", "postgres-delta")
_SAVERS = ("memory", "sqlite-langgraph", "sqlite-holdfast", "postgres-langgraph", "postgres-holdfast")
_PEERS = {"langgraph": _DELTA, "dbos": _STORES, "restate": ("server",)}
#: Their workers lease tasks: W3 would measure how long a lease lasts.
_TASK_QUEUES = {"absurd": ("postgres",), "pgtask": ("postgres",)}
_20_STEPS, _200_STEPS = {"steps": 20}, {"steps": 200}
#: Systems whose workflows are measured, and how many of these run.
_FLOWS = {"holdfast": _FORMS, "dbos": _STORES, "restate": ("server",), "absurd": ("postgres",)}
_SLEEPERS = tuple(f"{store}{how}" for store in _STORES for how in ("", "-left", "-left-restart"))
_ALONE, _CROWD = {"runs": 100, "parallel": 1}, {"runs": 384, "parallel": 128}
_FLEET = {"runs": 500, "steps": 20}

WORKLOADS = {
    "w1": Workload(
        "W1: one long run",
        "steps",
        {"raw": _COMMITS, "holdfast": _FORMS, **_PEERS, "langgraph": (*_STORES, *_DELTA), **_TASK_QUEUES},
        (Size(100), Size(1000, 5), Size(5000, 2)),
        (m.STEP, m.FIRST, m.LAST, m.GROWTH, m.DISK, m.WRITTEN),
        limit="raw {store}-{commits}",
        caps={"langgraph sqlite": 100, "langgraph postgres": 100},
    ),
    "w2": Workload(
        "W2: many runs at once",
        "runs",
        {"raw": _GROUPS, "holdfast": _FORMS, **_PEERS, **_TASK_QUEUES},
        (Size(1, 3, _20_STEPS), Size(16, 3, _20_STEPS, short=False), Size(128, 4, _20_STEPS),
         Size(1000, 2, _20_STEPS, peers={"steps": 5})),
        (m.RATE, m.P50, m.P99),
        limit="raw {store}-group-{commits}",
    ),
    "w3": Workload(
        "W3: recovery of interrupted runs",
        "runs",
        {"raw": ("file", "sqlite-1", "postgres-1"), "holdfast": _STORES, **_PEERS},
        (Size(200, 3, {"steps": 10}, short=False), Size(1000, 2, {"steps": 50}, peers=None)),
        m.RECOVERY,
        limit="raw {store}-1",
    ),
    "w4": Workload("W4: conversations", "turns", {"holdfast": _STORES}, (Size(200),), m.CONVERSATION),
    "w5": Workload(
        "W5: a pydantic-ai agent",
        "steps",
        {"raw": ("sqlite-2",), "pydantic_ai": ("bare", "holdfast-sqlite"), "dbos": ("dbos-sqlite",),
         "step_persistence": ("sqlite",)},
        (Size(50, 5),),
        (m.STEP, m.FIRST, m.LAST, m.DISK),
        limit="pydantic_ai bare",
    ),
    "w6": Workload("W6: live runs in one process, all waiting", "runs", {"holdfast": _STORES},
                   (Size(10_000, 1, {"seconds": 5}),), m.WAITING),
    "w7": Workload("W7: a fleet", "workers", {"holdfast": ("postgres",)},
                   (Size(1, 3, _FLEET), Size(2, 3, _FLEET), Size(4, 3, _FLEET)), (m.RATE, m.BUSY)),
    "w8": Workload(
        "W8: a store with many runs",
        "runs",
        {"holdfast": _STORES},
        (Size(1000), Size(10_000, short=False), Size(100_000), Size(1_000_000, 1, short=False)),
        m.SCALE,
    ),
    "w9": Workload("W9: watchers of one run", "watchers", {"holdfast": _STORES},
                   (Size(0, 3, _200_STEPS), Size(1, 3, _200_STEPS), Size(100, 3, _200_STEPS)), m.WATCHERS),
    "w10": Workload("W10: LangGraph's savers and ours", "runs", {"langgraph": _SAVERS},
                    (Size(128, 3, {"steps": 10}, short=False),), (m.RATE, m.PROCESSOR),
                    limit="langgraph {store}-langgraph"),
    "w11": Workload(
        "W11: workflows, one after the other",
        "steps",
        {"raw": ("file", "sqlite-1", "postgres-1"), **_FLOWS},
        (Size(1, 3, _ALONE, short=False), Size(3, 3, _ALONE), Size(9, 3, _ALONE, short=False),
         Size(1000, 3, {"runs": 1, "parallel": 1}, short=False)),
        (*m.WORKFLOWS, m.WORKFLOW_STEP),
        limit="raw {store}-1",
    ),
    "w12": Workload(
        "W12: workflows, 128 at a time",
        "steps",
        {"raw": ("file", "sqlite-group-1", "postgres-group-1"), **_FLOWS},
        (Size(1, 3, _CROWD, short=False), Size(3, 3, _CROWD), Size(9, 3, _CROWD, short=False)),
        m.WORKFLOWS,
        limit="raw {store}-group-1",
    ),
    "w13": Workload(
        "W13: a workflow that sleeps",
        "sleeps",
        {"raw": ("file", "sqlite-1", "postgres-1"), **_FLOWS, "holdfast": _SLEEPERS},
        (Size(1000, 3, short=False),),
        m.SLEEPS,
        limit="raw {store}-1",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One workload in one size on one subject."""

    workload: str
    size: Size
    subject: Subject

    def __str__(self) -> str:
        return f"{self.workload} {self.size.number:,} {self.subject}"

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes of the job, as its program gets them."""
        other = self.size.peers if self.subject.kind == "peer" else None
        return {"bytes": 1000, **self.size.numbers, **(other or {}), WORKLOADS[self.workload].axis: self.size.number}


def jobs(workload: str, size: Size, *, peers: bool) -> list[Job]:
    """Return the jobs of a workload in one size, one for each subject."""
    about = WORKLOADS[workload]
    return [
        Job(workload, size, subject)
        for subject in about.subjects(peers=peers)
        if size.number <= about.caps.get(str(subject), size.number)
        and (subject.kind != "peer" or size.peers is not None)
    ]


def all_sizes(*, peers: bool) -> Iterator[tuple[str, Size]]:
    """Yield each workload in each size that is measured, with peers or without."""
    for name, about in WORKLOADS.items():
        if about.subjects(peers=peers):
            yield from ((name, size) for size in about.sizes if peers or size.short)


def limit_of(workload: str, subject: Subject) -> Subject | None:
    """Return what a subject is compared with: the same store, with the number of commits a step that it makes."""
    template = WORKLOADS[workload].limit
    if subject.kind == "limit" or not template:
        return None
    store = next((store for store in _STORES if subject.variant.startswith(store)), None)
    if store is None and "{store}" in template:
        return Subject("raw", "file")  # Restate keeps its own log
    # Peers commit a reply before they call the tools.
    commits = 2 if subject.variant.endswith("-once") or subject.kind == "peer" else 1
    limit = Subject(*template.format(store=store, commits=commits).split())
    return limit if limit != subject else None
