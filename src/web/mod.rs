//! A web server for one user's browser on this machine.
//!
//! It listens on 127.0.0.1, which every user and every open web page can reach. So it answers only requests
//! that contain the token, a part of each address, and that name this machine as host (a foreign name that
//! points here is refused). Headers keep other pages from reading, framing or loading the answers. It only
//! reads: GET is the only method. Slow clients, and clients that send too much, are dropped and block no
//! others.
//!
//! It knows nothing about the content of the pages.

mod head;
mod server;

pub use head::Request;
pub use server::{Answer, Kind, Server, nonce};
