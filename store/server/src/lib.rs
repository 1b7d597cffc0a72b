//! The embeddable etcd-compatible store.
