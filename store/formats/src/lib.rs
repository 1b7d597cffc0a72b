//! Pure codecs for etcd's files: bbolt, log records, snapshots.
