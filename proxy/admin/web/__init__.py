"""The HTTP server of the admin port: request parsing, and responses and failures as JSON.

*Statuses* map faults to HTTP; *fields* read the JSON of requests within bounds; *JSON forms* are
those of the domain.
"""
