"""One gateway in several processes: a supervisor that accepts, and workers that serve.

The supervisor loads everything and then makes the workers out of itself (fork), so that what is loaded is in
memory once. It accepts connections and hands each to the worker that has the fewest, starts anew what
dies, renews all in turn on SIGHUP, and ends with them. See docs/operations.md. The supervisor itself is in
`proxy.supervision`; here is what every process has of the others: the *crew* are the processes with their
stages, the *roster* is what a worker knows of them, and *membership* is one worker's part in it.
"""
