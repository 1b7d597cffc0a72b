//! Consensus: a synchronous raft node and the one thread that drives it.
