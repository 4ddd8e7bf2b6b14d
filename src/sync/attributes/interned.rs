//! Equal attributes of many entries, once in memory: most entries of a tree have the same owner and no xattrs.

use super::Values;

/// Maximum number of values that are remembered.
const KEPT_MAX: usize = 8;

/// The values that were used last.
#[derive(Default)]
pub struct Interned {
    kept: Vec<Values>,
    next: usize,
}

impl Interned {
    /// Returns these names and values, sorted by name, shared with those of earlier calls if they are equal.
    pub fn share(&mut self, rows: Vec<(Vec<u8>, Vec<u8>)>) -> Values {
        let is_equal = |kept: &&Values| {
            kept.len() == rows.len() && kept.iter().zip(&rows).all(|(kept, row)| kept == (&row.0, &row.1))
        };
        if let Some(kept) = self.kept.iter().find(is_equal) {
            return kept.clone();
        }
        let values: Values = rows.into_iter().collect();
        match self.kept.get_mut(self.next) {
            Some(kept) => *kept = values.clone(),
            None => self.kept.push(values.clone()),
        }
        self.next = (self.next + 1) % KEPT_MAX;
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared() {
        let mut interned = Interned::default();
        let row = |n: usize| vec![(b"owner".to_vec(), format!("a:{n}").into_bytes())];
        let all: Vec<Values> = (0..20).map(|n| interned.share(row(n % 10))).collect();
        assert!((0..20).all(|n| all[n].iter().map(|(a, b)| (a.clone(), b.clone())).eq(row(n % 10))));
        let mut one = interned.share(row(9));
        let two = interned.share(row(9));
        assert!(std::ptr::eq(&*one, &*two), "one place in memory");
        one.insert(b"user.x".to_vec(), b"1".to_vec());
        assert_eq!((one.len(), two.len()), (2, 1));
        assert!(interned.share(Vec::new()).is_empty());
    }
}
