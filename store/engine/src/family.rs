//! The maps of an engine. What they hold is the business of the state machine above; here they are
//! names with an order, and a hint for the on-disk engine of how each is used.

/// One ordered map of byte strings. All families of an engine change together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// The log of all changes in the order of revisions: append only, deleted from behind.
    Key,
    /// The newest state of each user key: small values, point reads, overwritten in place.
    Index,
    /// All retained revisions of each user key: no values to speak of, read by seeking.
    History,
    /// Lease and attached key: no values, short scans.
    LeaseKey,
    /// Everything small: members, leases, alarms, users, the applied index.
    System,
}

impl Family {
    /// All families, in the order of their numbers.
    pub const ALL: [Family; 5] =
        [Family::Key, Family::Index, Family::History, Family::LeaseKey, Family::System];

    /// The family's name on disk and in metrics. Part of the on-disk format: never change one.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Key => "key",
            Family::Index => "index",
            Family::History => "history",
            Family::LeaseKey => "lease_key",
            Family::System => "system",
        }
    }

    /// Position in [`Family::ALL`], for tables with one slot per family.
    pub const fn number(self) -> usize {
        self as usize
    }
}
