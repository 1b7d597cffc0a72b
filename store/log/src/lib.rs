//! The raft log on disk in etcd's WAL format.
