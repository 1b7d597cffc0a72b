//! The deterministic state machine: revisions, ranges, transactions, compaction, hashes, leases, members.
