//! Ordered byte maps with atomic batches and snapshots.
