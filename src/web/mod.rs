//! A server of pages for a browser on this machine, and for nobody else.
//!
//! It listens on 127.0.0.1, where every user and every page that a browser has open can reach it. So what it tells goes only to
//! who knows the token, a part of each address; only if the browser thinks that it speaks to this machine (a name that
//! somebody points here is refused); and in a form that no other page may read, frame or load. It only reads: there is no
//! method but GET. Who is slow or sends too much is given up, and keeps nobody else waiting.
//!
//! Nothing here knows what the pages are of.

mod head;
mod server;

pub use head::{HEAD_BYTES_MAX, Request};
pub use server::{Answer, Kind, Server, nonce};
