//! What a page has besides when it is one of several that a program serves.

/// A field of a form.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name in the address.
    pub name: &'static str,
    /// What stands beside it.
    pub label: &'static str,
    /// What is in it.
    pub value: String,
    /// Shown while it is empty.
    pub example: &'static str,
}

/// A form; what is asked goes into the address.
#[derive(Clone, Debug)]
pub struct Form {
    /// The page that answers.
    pub to: &'static str,
    /// From the left.
    pub fields: Vec<Field>,
    /// What the button says.
    pub button: &'static str,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Site {
    /// Where else to go: address and name.
    pub links: &'static [(&'static str, &'static str)],
    /// The one that this page is.
    pub here: &'static str,
    /// Of the scripts, as the head of the answer says it.
    pub nonce: String,
    /// Under the heading.
    pub form: Option<Form>,
    /// It is asked for again after so many seconds.
    pub refresh_seconds: Option<u32>,
    /// Whether it draws, for as long as it is open, what `status.json` says.
    pub live: bool,
}
