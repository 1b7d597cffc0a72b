//! Raw gRPC clients of one member: requests go out as they are, without retries.

use anyhow::Result;
use mainstay_proto::etcdserverpb::{
    cluster_client::ClusterClient, kv_client::KvClient, lease_client::LeaseClient,
    maintenance_client::MaintenanceClient, watch_client::WatchClient,
};
use tonic::transport::{Channel, Endpoint};

/// Clients of all services over one connection.
#[derive(Clone, Debug)]
pub struct Client {
    /// KV.
    pub kv: KvClient<Channel>,
    /// Watch.
    pub watch: WatchClient<Channel>,
    /// Lease.
    pub lease: LeaseClient<Channel>,
    /// Cluster.
    pub cluster: ClusterClient<Channel>,
    /// Maintenance.
    pub maintenance: MaintenanceClient<Channel>,
}

/// Answers of a scan over everything may be large.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

impl Client {
    /// Connects to `http://HOST:PORT`.
    pub async fn connect(url: &str) -> Result<Self> {
        let channel = Endpoint::from_shared(url.to_string())?.tcp_nodelay(true).connect().await?;
        Ok(Self::over(channel))
    }

    /// Connects at the first call.
    pub fn lazy(url: &str) -> Result<Self> {
        Ok(Self::over(Endpoint::from_shared(url.to_string())?.tcp_nodelay(true).connect_lazy()))
    }

    fn over(channel: Channel) -> Self {
        Client {
            kv: KvClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
            lease: LeaseClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES),
        }
    }
}
