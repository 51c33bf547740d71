"""holdfast, as an application uses it: `python -m bench.systems.holdfast JOB`."""

from bench.systems.holdfast.fleet import fleet
from bench.systems.holdfast.idle import waiting_runs
from bench.systems.holdfast.recovery import interrupted
from bench.systems.holdfast.runs import many_runs, one_run, three_calls
from bench.systems.holdfast.scale import kept_runs_in_store, queued_runs_in_store, waiting_runs_in_store
from bench.systems.protocol import main

if __name__ == "__main__":
    main(
        {
            "w1": one_run,
            "w2": many_runs,
            "w3": interrupted,
            "w4": three_calls,
            "w6": waiting_runs,
            "w7": fleet,
            "w8": waiting_runs_in_store,
            "w9": queued_runs_in_store,
            "w10": kept_runs_in_store,
        },
        packages=["holdfast", "apsw", "msgspec", "psycopg"],
    )
