"""`popgate doctor`: what it sees of an address, of a cluster, and of the brokers in it."""
