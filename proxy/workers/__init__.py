"""One gateway in several processes: a supervisor that accepts, and workers that serve.

The supervisor loads all code and then forks the workers, so that it is in memory once. It accepts connections
and passes each to the worker that has the fewest, restarts workers that die, renews all in turn on SIGHUP,
and stops with them. See docs/operations.md. The supervisor itself is in `proxy.supervision`; this package has
the view of the processes on each other: the *crew* are the processes with their stages, the *roster* is what
a worker knows of them, and *membership* is one worker's part in it.
"""
