"""`popgate doctor`: findings about an address, about a cluster, and about its brokers."""
