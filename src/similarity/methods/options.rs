//! Parameters of methods, as users write them.

use super::{AnyMethod, Method};
use std::str::FromStr;
use std::sync::Arc;

/// A method that may be chosen with parameters.
pub trait Parametric: Method {
    /// The parameters, for people to read.
    const KEYS: &'static str;

    /// All parameters with their defaults as users write them, for help.
    const EXAMPLE: &'static str;

    /// A note for users about answers that can mislead them.
    const NOTE: Option<&'static str> = None;

    /// Makes the method with these parameters and defaults for all others. Takes the options that it knows.
    fn with(options: &mut Options) -> Result<Self, String>;
}

/// Parameters given by the user, each with its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(pub(super) Vec<(String, String)>);

impl Options {
    /// Takes the value for `key`.
    pub fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(of, _)| of == key)?;
        Some(self.0.remove(at).1)
    }

    /// Takes and parses a value.
    pub fn parse<T: FromStr>(&mut self, key: &str, expected: &str) -> Result<Option<T>, String> {
        let Some(text) = self.take(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{key}={text}: expected {expected}"))
    }

    /// Takes one of two words, and returns whether it was the first.
    pub fn either(&mut self, key: &str, [first, second]: [&str; 2]) -> Result<Option<bool>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(text) if text == first || text == second => Ok(Some(text == first)),
            Some(text) => Err(format!("{key}={text}: expected {first} or {second}")),
        }
    }

    /// Returns the rest of each key that begins with `front`.
    pub fn after(&self, front: &str) -> Vec<String> {
        self.0.iter().filter_map(|(key, _)| key.strip_prefix(front)).map(str::to_owned).collect()
    }
}

/// A method for the list of all, without its type.
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) keys: &'static str,
    pub(super) example: &'static str,
    pub(super) note: Option<&'static str>,
    pub(super) make: fn(Options) -> Result<Arc<dyn AnyMethod>, String>,
}

impl Known {
    pub(super) const fn of<M: Parametric>() -> Known {
        Known { name: M::NAME, keys: M::KEYS, example: M::EXAMPLE, note: M::NOTE, make: made::<M> }
    }
}

fn made<M: Parametric>(options: Options) -> Result<Arc<dyn AnyMethod>, String> {
    Ok(Arc::new(with::<M>(options)?))
}

/// Makes a method with these parameters; fails if it does not have one of them.
pub(super) fn with<M: Parametric>(mut options: Options) -> Result<M, String> {
    let method = M::with(&mut options)?;
    match options.0.first() {
        Some((key, _)) => Err(format!("there is no {key:?}")),
        None => Ok(method),
    }
}
