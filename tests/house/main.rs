//! The rules of this checkout. Nothing is mounted.

mod dependencies;
mod imports;
mod layers;
mod truncations;
mod words;
