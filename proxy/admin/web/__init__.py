"""The server of the admin port: what it reads, and how answers and failures become JSON.

*Statuses* map faults to HTTP; *fields* read the JSON of requests within bounds; *JSON forms* are
those of the domain.
"""
