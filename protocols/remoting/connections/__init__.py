"""The connections of the remoting door: opened, read, written, drained."""
