//! A user's choice of a method, with its parameters: `winnow`, or `winnow:k=30,w=20`. The same text works on
//! the command line, in `config.toml` and in requests. Missing parameters have the paper's values; an invalid
//! text is an error that shows a valid form.

use super::options::{Known, with};
use super::{AnyMethod, KNOWN, Options, Parametric};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The chosen method does not exist in this form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMethod {
    /// There is no such method.
    #[error("method {0:?}: expected {names}", names = names().join(", "))]
    Unknown(String),
    /// The method exists, but not with these parameters.
    #[error("method {text:?}: {reason}; {keys}")]
    Parameters {
        /// The user's text.
        text: String,
        /// The error.
        reason: String,
        /// Parameters that the method has.
        keys: &'static str,
    },
}

/// A method and its parameters. It displays as the text that it was read from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Chosen {
    /// Index in [`KNOWN`].
    place: usize,
    options: Options,
}

/// Returns the names of the methods.
pub fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.name).collect()
}

/// Returns each method with all its parameters and their defaults, as users write them.
pub fn examples() -> Vec<String> {
    KNOWN.iter().map(|known| format!("{}:{}", known.name, known.example)).collect()
}

/// Returns every method, with its default parameters.
pub fn all() -> Vec<Arc<dyn AnyMethod>> {
    let bare = (0..KNOWN.len()).map(|place| Chosen { place, options: Options::default() });
    bare.map(|chosen| chosen.any()).collect()
}

/// Returns the method that users call by this name, with its default parameters.
pub fn named(name: &str) -> Option<Arc<dyn AnyMethod>> {
    all().into_iter().find(|method| method.name() == name)
}

impl FromStr for Chosen {
    type Err = BadMethod;

    fn from_str(text: &str) -> Result<Chosen, BadMethod> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let place = KNOWN.iter().position(|known| known.name == name);
        let place = place.ok_or_else(|| BadMethod::Unknown(text.to_owned()))?;
        let Known { keys, make, .. } = KNOWN[place];
        let bad = |reason| BadMethod::Parameters { text: text.to_owned(), reason, keys };
        let mut options = Options::default();
        for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) =
                part.split_once('=').ok_or_else(|| bad(format!("{part:?}: expected KEY=VALUE")))?;
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            if options.0.iter().any(|(given, _)| *given == key) {
                return Err(bad(format!("{key} twice")));
            }
            options.0.push((key, value));
        }
        make(options.clone()).map_err(bad)?;
        Ok(Chosen { place, options })
    }
}

impl TryFrom<String> for Chosen {
    type Error = BadMethod;

    fn try_from(text: String) -> Result<Chosen, BadMethod> {
        text.parse()
    }
}

impl From<Chosen> for String {
    fn from(chosen: Chosen) -> String {
        chosen.to_string()
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let fronts = [":"].into_iter().chain(std::iter::repeat(","));
        self.options
            .0
            .iter()
            .zip(fronts)
            .try_for_each(|((key, value), front)| write!(f, "{front}{key}={value}"))
    }
}

impl Chosen {
    /// Returns the method's name for users.
    pub fn name(&self) -> &'static str {
        KNOWN[self.place].name
    }

    /// Returns the note for users about answers that can mislead them.
    pub fn note(&self) -> Option<&'static str> {
        KNOWN[self.place].note
    }

    /// Returns whether no parameter was given.
    pub fn is_bare(&self) -> bool {
        self.options.0.is_empty()
    }

    /// Returns the method.
    pub fn any(&self) -> Arc<dyn AnyMethod> {
        (KNOWN[self.place].make)(self.options.clone()).expect("it was made when it was read")
    }

    /// Returns the method with its type; `None` if another was chosen.
    pub fn of<M: Parametric>(&self) -> Option<M> {
        (self.name() == M::NAME).then(|| with(self.options.clone()).ok()).flatten()
    }

    /// Adds one more parameter.
    ///
    /// Fails if it was given already, or if it is invalid.
    pub fn and(&self, key: &str, value: &str) -> Result<Chosen, BadMethod> {
        let front = if self.is_bare() { ':' } else { ',' };
        format!("{self}{front}{key}={value}").parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::methods::simhash::{Extension, KeyKind, SimHash, Tolerance};

    fn settings(text: &str) -> String {
        text.parse::<Chosen>().map_or_else(|e| e.to_string(), |chosen| chosen.any().settings())
    }

    #[test]
    fn what_is_not_said_is_as_by_default() {
        for method in all() {
            assert_eq!(settings(method.name()), method.settings());
        }
        assert_eq!(all().len(), names().len());
        let chosen: Chosen = "winnow:w=20, k=30".parse().unwrap();
        assert_eq!((chosen.name(), chosen.to_string()), ("winnow", "winnow:w=20,k=30".to_owned()));
        assert_eq!(chosen.to_string().parse(), Ok(chosen));
    }

    #[test]
    fn the_help_shows_the_defaults() {
        for (example, method) in examples().iter().zip(all()) {
            let text = example.split(" (").next().unwrap();
            let chosen: Chosen = text.parse().unwrap();
            assert!(!chosen.is_bare(), "{example}");
            assert_eq!(chosen.any().description(), method.description(), "{example}");
        }
    }

    #[test]
    fn winnowing_takes_two_of_k_w_and_t() {
        for text in ["winnow:k=30,w=20", "winnow:k=30,t=49", "winnow:w=20,t=49", "winnow:k=30,w=20,t=49"] {
            assert_eq!(settings(text), "robust k=30 w=20", "{text}");
        }
        assert_eq!(settings("winnow:k=30"), "robust k=30 w=100");
        assert_eq!(settings("winnow:t=200"), "robust k=50 w=151");
        assert_eq!(settings("winnow:select=plain"), "plain k=50 w=100");
        let described = |text: &str| text.parse::<Chosen>().unwrap().any().description();
        assert!(described("winnow:k=30,w=20").contains("t=49"), "{}", described("winnow:k=30,w=20"));
        for (text, part) in [
            ("winnow:k=30,w=20,t=50", "t = w+k-1 = 49"),
            ("winnow:k=30,t=29", "expected 30 or more"),
            ("winnow:w=30,t=29", "expected 30 or more"),
            ("winnow:k=0", "expected 1 to"),
            ("winnow:k=x", "expected a number"),
            ("winnow:k=1,k=2", "k twice"),
            ("winnow:q=1", "there is no \"q\""),
            ("winnow:", "expected KEY=VALUE"),
            ("winnows", "expected sif, winnow, chunk-graph, simhash"),
            ("sif:zeros=31", "expected 0 to 16"),
            ("sif:bits=29", "expected 30 to 32"),
            ("chunk-graph:target=63", "expected from 64 to 1048576 bytes"),
            ("simhash:key=both", "expected uniform or skew"),
            ("simhash:tolerance=2", "expected a number from 0 to 1"),
            ("simhash:tolerance=0.1,tolerance.c=0.2", "tolerances of .c: expected none above"),
            ("simhash:size.ps=0.06", "expected none above"),
            ("simhash:tolerance.toolong=0.1", "expected an extension of 1 to 3"),
        ] {
            assert!(settings(text).contains(part), "{text}: {}", settings(text));
        }
    }

    #[test]
    fn simhash_takes_a_key_and_tolerances() {
        let of = |text: &str| text.parse::<Chosen>().unwrap().of::<SimHash>().unwrap();
        let method =
            of("simhash:key=uniform,extension=no,tolerance=0.02,size=0.1,tolerance.PS=0.002,keys.c=0.003");
        assert_eq!(method.key, KeyKind::UNIFORM);
        assert_eq!(method.tolerance, Tolerance { key: 0.02, size: 0.1, sums: 0.02 });
        let own =
            |name: &[u8; 3]| method.by_extension.iter().find(|(of, _)| *of == Extension(*name)).unwrap().1;
        assert_eq!(own(b"ps\0"), Tolerance { key: 0.002, size: 0.05, sums: 0.002 });
        assert_eq!(own(b"c\0\0"), Tolerance { key: 0.003, size: 0.1, sums: 0.02 });
        assert_eq!(own(b"eps").sums, 0.001, "what is not named stays");
        let stricter = of("simhash:tolerance=0.0001").by_extension;
        assert!(stricter.iter().all(|(_, own)| own.sums == 0.0001), "none is above that for all");
        assert_eq!(of("simhash:key=uniform").key, KeyKind::UNIFORM_EXTENSION);
        assert_eq!(of("simhash:extension=no").key, KeyKind::SKEW);
        assert_eq!(settings("simhash:tolerance=0.5"), settings("simhash"), "an index is the same");
        assert_ne!(settings("simhash:key=uniform"), settings("simhash"));
        assert_ne!(settings("simhash:extension=no"), settings("simhash"));
    }
}
