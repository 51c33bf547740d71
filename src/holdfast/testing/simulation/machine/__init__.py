"""The simulated machine: virtual time, event loops, threads, processes, disks and stores that fail by seed."""
