"""One broker, several gateways: a process that hosts it, and guests that reach it over a socket."""
