//! Additional parts of a page in a served site.

/// A field of a form.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name in the address.
    pub name: &'static str,
    /// Its label.
    pub label: &'static str,
    /// Its value.
    pub value: String,
    /// Placeholder while it is empty.
    pub example: &'static str,
}

/// A form; its fields become the query of the address.
#[derive(Clone, Debug)]
pub struct Form {
    /// The page that answers.
    pub to: &'static str,
    /// Fields from left to right.
    pub fields: Vec<Field>,
    /// Text of the button.
    pub button: &'static str,
}

/// Parts of the site; see the module.
#[derive(Clone, Debug)]
pub struct Site {
    /// Links to other pages: address and name.
    pub links: &'static [(&'static str, &'static str)],
    /// Address of this page.
    pub here: &'static str,
    /// Nonce of the scripts, as in the response header.
    pub nonce: String,
    /// Form under the heading.
    pub form: Option<Form>,
    /// Seconds until the page reloads.
    pub refresh_seconds: Option<u32>,
    /// Whether it plots values of `status.json` while it is open.
    pub live: bool,
}
