"""holdfast, as an application uses it: `python -m bench.systems.holdfast JOB`."""

from bench.systems.holdfast.conversation import conversation
from bench.systems.holdfast.fleet import fleet
from bench.systems.holdfast.idle import waiting_runs
from bench.systems.holdfast.recovery import interrupted
from bench.systems.holdfast.runs import many_runs, one_run
from bench.systems.holdfast.scale import filled_store
from bench.systems.holdfast.watchers import watched_run
from bench.systems.holdfast.workflows import many_sleeps, many_workflows
from bench.systems.protocol import main

if __name__ == "__main__":
    main(
        {
            "w1": one_run,
            "w2": many_runs,
            "w3": interrupted,
            "w4": conversation,
            "w6": waiting_runs,
            "w7": fleet,
            "w8": filled_store,
            "w9": watched_run,
            "w11": many_workflows,
            "w12": many_workflows,
            "w13": many_sleeps,
        },
        packages=["holdfast", "apsw", "msgspec", "psycopg"],
    )
