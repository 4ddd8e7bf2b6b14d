//! What resembles what: answers about similar and contained files.

#[path = "../common/mod.rs"]
mod common;

mod contained;
mod groups;
mod kept_methods;
mod methods;
mod oracle;
mod sif_experiment;
mod similar;
mod templates;
mod views;
