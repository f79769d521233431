"""A broker in this process, on RocksDB: one atomic write per step, group commit, no log files of its own."""
