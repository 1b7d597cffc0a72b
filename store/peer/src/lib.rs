//! etcd's peer protocol.
