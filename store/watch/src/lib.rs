//! Watchers: live delivery, catch-up, progress and the slow-reader policy.
