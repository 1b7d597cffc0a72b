//! etcd's messages, wire-equal: the client protocol, the payload of log entries, raft messages
//! between peers, and the records of the log on disk.
//!
//! Everything here is generated from `etcd/*.proto` but the transaction, whose nesting needs care
//! ([`nested`]); nothing decides anything.
//! **Invariant:** a message that came from the wire encodes to bytes that etcd's decoder reads
//! with the same meaning; proto2 fields keep the difference between absent and zero.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

pub mod nested;

pub use prost;

macro_rules! package {
    ($name:ident, $package:literal $(, $own:path)?) => {
        pub mod $name {
            $(pub use $own;)?
            tonic::include_proto!($package);
        }
    };
}

package!(mvccpb, "mvccpb");
package!(authpb, "authpb");
package!(membershippb, "membershippb");
package!(etcdserverpb, "etcdserverpb", crate::nested::TxnRequest);
package!(leasepb, "leasepb");
package!(raftpb, "raftpb");
package!(walpb, "walpb");
package!(snappb, "snappb");
package!(v3lockpb, "v3lockpb");
package!(v3electionpb, "v3electionpb");

/// The encoded `FileDescriptorSet` of all files, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/etcd.descriptors"));
