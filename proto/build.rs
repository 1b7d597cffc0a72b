//! Compiles `etcd/*.proto` with a Rust compiler, so that no `protoc` is needed.
//! Output: one Rust file per package and the descriptor set that server reflection serves.

use std::path::PathBuf;

use prost::Message as _;

const FILES: &[&str] = &[
    "mvccpb.proto",
    "authpb.proto",
    "membershippb.proto",
    "rpc.proto",
    "raft_internal.proto",
    "metadata.proto",
    "leasepb.proto",
    "raftpb.proto",
    "walpb.proto",
    "snappb.proto",
    "v3lockpb.proto",
    "v3electionpb.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=etcd");
    let set = protox::compile(FILES, ["etcd"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("etcd.descriptors"), set.encode_to_vec())?;
    // `Bytes` for every bytes field: keys and values are shared with the frame they came in.
    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        .extern_path(".etcdserverpb.TxnRequest", "crate::nested::TxnRequest")
        .compile_fds(set)?;
    Ok(())
}
