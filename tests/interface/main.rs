//! What people and other programs see: commands, pages, units, examples.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod cli;
mod examples;
mod guide;
mod pages;
mod systemd;
mod ui;
