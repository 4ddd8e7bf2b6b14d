//! The control socket of a daemon: a Unix socket with one request a connection.
//!
//! ```text
//! client                    server
//! {"do":"scan",...}\n  -->
//!                      <--  {"progress":{...}}\n     any number of times
//!                      <--  {"ok":{...}}\n           or {"error":{...}}\n, once
//! ```
//!
//! The socket is in a runtime directory that only its user can enter. The server asks the kernel for the
//! client's user, and serves only the daemon's own user and root. Each connection has its own thread, so a
//! long request delays neither the filesystem nor other requests.

mod client;
mod daemon_info;
mod discover;
mod error;
mod proto;
mod runtime;
mod server;

pub use client::Client;
pub use daemon_info::DaemonInfo;
pub use discover::{Found, daemon_at, find, find_store};
pub use error::ControlError;
pub use proto::Fault;
pub use runtime::runtime_dir;
pub use server::{Handler, Server};

/// Every file of a mounted overlay answers this xattr with a [`DaemonInfo`] in JSON.
pub const CONTROL_XATTR: &str = "user.dedupfs.control";
