//! Copies of a tree on several machines, kept alike in few bytes.

pub mod delta;
