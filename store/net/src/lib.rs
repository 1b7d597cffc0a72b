//! Sockets: listen URLs as etcd's flags give them, and the server that answers gRPC and HTTP/1.1
//! on one port.
//!
//! Input: listen URLs, files of TLS, and a [`Handler`]. Output: requests handed to the handler, each with the
//! [`Connection`] that it came on. What a request means is the handler's business.
//!
//! **Invariants:** a connection that breaks the protocol is closed without touching the others;
//! the number of connections has a limit; after [`Server::shutdown`] no new request starts, and
//! connections that do not end by themselves are cut at the deadline.

mod authority;
mod hpack;
mod listen;
mod pings;
mod serve;
mod timed_io;
pub mod tls;
mod url;

pub use listen::{BindError, Listener, Stream};
pub use serve::{Body, BoxError, Connection, Handler, Options, Server, full};
pub use url::{ListenUrl, Scheme, UrlError, check_advertise_urls, parse_urls};
