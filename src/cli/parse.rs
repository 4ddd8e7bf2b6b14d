//! Values of arguments that several commands take.

use crate::contents::Look;
use crate::view::View;

pub(super) fn parse_look(name: &str) -> Result<Look, String> {
    if name == "auto" {
        return Ok(Look::Auto);
    }
    let known = || View::ALL.map(View::name).join(", ");
    name.parse().map(Look::Through).map_err(|()| format!("expected auto, raw, {}", known()))
}

pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
